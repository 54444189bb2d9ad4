"""What a file of JSON holds. It says so itself under `schema`, such as `headway.heads/1`; older files go by their name
and by what is in them."""

from pathlib import Path
from typing import Any


def schema_of(path: Path, content: Any, in_run: bool) -> str:
    """`heads`, `heads-population`, `lengths`, `measured`, `evaluation` and so on; `in_run` is whether the file lies in
    the folder of a run."""
    schema = content.get("schema") if isinstance(content, dict) else None
    if isinstance(schema, str) and schema.startswith("headway."):
        return schema.removeprefix("headway.").partition("/")[0]
    match path.stem:
        case "heads" if not in_run and isinstance(content, dict) and "members" in content:
            return "heads-population"
        case "lengths" if in_run and not (isinstance(content, dict) and "train_lengths" in content):
            return "measured"
        case "evaluation-sample":
            return "evaluation"
    return path.stem
