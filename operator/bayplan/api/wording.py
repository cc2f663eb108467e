"""What a schema accepts, in words: one wording for error messages and for the reference page."""

from bayplan.api.structural import INT_OR_STRING, Json


def accepted(schema: Json) -> str:
    """Return a noun phrase such as `a whole number from 1 to 64`."""
    if "enum" in schema:
        return f"one of {', '.join(repr(value) for value in schema['enum'])}"
    if INT_OR_STRING in schema:
        return "a quantity such as 500m, 4 or 16Gi, not negative"
    words = {
        "integer": "a whole number from {minimum} to {maximum}",
        "number": "a number {lower} {minimum} to {maximum}",
        "string": "text of {minLength} to {maxLength} characters",
        "boolean": "true or false",
        "array": "a list of at most {maxItems} entries",
        "object": "an object" if "properties" in schema else "a map of at most {maxProperties} entries",
    }
    lower = "above" if schema.get("exclusiveMinimum") else "from"
    phrase = words[schema["type"]].format(**{"minLength": 0, "lower": lower, **schema})
    return f"{phrase} that match {schema['pattern']}" if "pattern" in schema else phrase
