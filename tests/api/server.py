"""Asking the API server for its verdict without storing anything."""

from typing import Any

from bayplan.api import names
from e2e.localcluster import ApiError, KubeApi

COLLECTION = f"/apis/{names.API_VERSION}/namespaces/{{}}/{names.INFERENCEMODEL_PLURAL}"
"""Path of the InferenceModels of a namespace."""


async def refusal(api: KubeApi, method: str, path: str, body: Any) -> str | None:
    """Return why the API server refuses the write, or None when it would accept it; nothing is stored."""
    try:
        await api.request(method, path, body, query={"dryRun": "All", "fieldValidation": "Strict"})
    except ApiError as error:
        if error.status not in (400, 422):
            raise
        return error.message
    return None
