"""What all sections of the configuration file have in common."""

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field
from pydantic.alias_generators import to_camel

Seconds = Annotated[float, Field(gt=0, le=86400, allow_inf_nan=False)]


class Section(BaseModel):
    """camelCase keys, unknown ones refused."""

    model_config = ConfigDict(extra="forbid", alias_generator=to_camel, validate_by_name=True, validate_by_alias=True)
