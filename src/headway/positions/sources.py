"""The code of a user's own task and encoding, which is part of what a run is: edited code is another run."""

import hashlib

from headway.plugins import source_hash
from headway.positions import find_positions
from headway.tasks import Task


def hash_sources(task: Task, task_name: str, positions: str) -> str | None:
    """Hashes the code of the user's own files that define a task and an encoding; None where both are Headway's."""
    kinds: list[type] = [type(task)] if ":" in task_name else []
    if ":" in positions:
        kinds.append(find_positions(positions).kind)
    own = [kind for kind in kinds if kind.__module__.partition(".")[0] != "headway"]
    if not own:
        return None
    return hashlib.sha256(" ".join(map(source_hash, own)).encode()).hexdigest()
