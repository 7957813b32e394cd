"""osscl: continual learning from few labels in an open world.

Public names are imported on first use, so `import osscl` is quick.
"""

from importlib import import_module
from typing import Any

__version__ = "0.2.0"

_PUBLIC = {
    "CONFIGURATIONS": "osscl.methods",
    "ContinualClassifier": "osscl.agent.classifier",
    "DATASETS": "osscl.data.benchmarks",
    "METHODS": "osscl.methods",
    "Options": "osscl.runs.checkpoint",
    "RunRecord": "osscl.runs.record",
    "RunSpec": "osscl.runs.spec",
    "SCHEDULES": "osscl.methods.base",
    "ScenarioSpec": "osscl.stream.scenario",
    "build_stream": "osscl.stream.build",
    "check_method": "osscl.tools.battery",
    "load": "osscl.agent.loading",
    "load_bank": "osscl.data.benchmarks",
    "load_folder": "osscl.data.folders",
    "load_pictures": "osscl.data.folders",
    "make_spec": "osscl.runs.spec",
    "read_record": "osscl.runs.record",
    "run": "osscl.runs.run",
}
__all__ = ["__version__", *_PUBLIC]


def __getattr__(name: str) -> Any:
    if name in _PUBLIC:
        return getattr(import_module(_PUBLIC[name]), name)
    raise AttributeError(f"module 'osscl' has no attribute {name!r}")
