"""The whole loop in one command: evaluate, warm start, reinforce, evaluate, report."""

from journeyman.flywheel.inputs import TaskSets, choose_tasks, model_path, task_set_dir
from journeyman.flywheel.start import open_run, run_job

__all__ = ["TaskSets", "choose_tasks", "model_path", "open_run", "run_job", "task_set_dir"]
