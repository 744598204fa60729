"""Task stage: labelled examples in three splits, and the test scores of trivial rules."""

from rungwise.core.stages.artifact import Inputs
from rungwise.core.stages.stage import Context
from rungwise.core.storage.folder import Folder
from rungwise.tasks.config import FilesTaskConfig, MadeTaskConfig, ParagraphTaskConfig
from rungwise.tasks.data import files, made
from rungwise.tasks.interface import task_kind
from rungwise.tasks.kinds.examples import ExampleCounts, TaskSummary, write_examples


def build_task(
    config: ParagraphTaskConfig | MadeTaskConfig | FilesTaskConfig,
    inputs: Inputs,
    output: Folder,
    context: Context,
) -> TaskSummary:
    """Write the splits. `inputs` has the corpus that a task is made of, and is empty for files.

    Raises DataError, naming file and line, for data that no model should be trained on.
    """
    match config:
        case ParagraphTaskConfig():
            task = made.load_paragraphs(config, inputs["corpus"])
        case MadeTaskConfig():
            task = made.load(config, inputs["corpus"])
        case FilesTaskConfig():
            task = files.load(config)
    for split, examples in task.splits.items():
        write_examples(examples, output, split)
    for note in task.notes:
        context.report.note(note)
    counts = {split: len(examples) for split, examples in task.splits.items()}
    labels = f"  {len(task.info.labels)} labels" if task.info.labels else ""
    return TaskSummary(
        info=task.info,
        examples=ExampleCounts(**counts),
        # A balanced draw hides which label is the commonest; the whole training split shows it.
        baselines=task_kind(task.info).baselines(
            task.whole_train or task.splits["train"], task.splits["test"]
        ),
        overlap=task.overlap,
        irregular=task.irregular,
        headline=f"{task.info.kind}{labels}  {counts['train']} to train on  "
        f"{counts['validation']} to validate  {counts['test']} to test",
    )
