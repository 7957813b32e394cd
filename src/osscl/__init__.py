"""osscl: continual learning from few labels in an open world.

The public names are imported when they are first asked for: `import osscl` costs nothing until then.
"""

from importlib import import_module
from typing import Any

__version__ = "0.1.0"

_PUBLIC = {
    "CONFIGURATIONS": "osscl.methods",
    "ContinualClassifier": "osscl.agent.classifier",
    "DATASETS": "osscl.data.benchmarks",
    "METHODS": "osscl.methods",
    "Options": "osscl.experiments.checkpoint",
    "RunRecord": "osscl.experiments.record",
    "RunSpec": "osscl.experiments.spec",
    "SCHEDULES": "osscl.methods.method",
    "ScenarioSpec": "osscl.stream.scenario",
    "build_stream": "osscl.stream.build",
    "check_method": "osscl.experiments.battery",
    "load": "osscl.experiments.saved",
    "load_bank": "osscl.data.benchmarks",
    "load_folder": "osscl.data.folders",
    "load_pictures": "osscl.data.folders",
    "make_spec": "osscl.experiments.spec",
    "read_record": "osscl.experiments.record",
    "run": "osscl.experiments.run",
}
__all__ = ["__version__", *_PUBLIC]


def __getattr__(name: str) -> Any:
    if name in _PUBLIC:
        return getattr(import_module(_PUBLIC[name]), name)
    raise AttributeError(f"module 'osscl' has no attribute {name!r}")
