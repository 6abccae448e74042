"""Check task plans against contract v1 before anything is opened. The API and the runner both use it."""

from collections import Counter
from collections.abc import Sequence

from vitrina.definition import Definition, Task, not_a_step_name
from vitrina.errors import FieldError, ForbiddenTarget, Invalid
from vitrina.sentences import say
from vitrina.step_rules import STEP_NAME
from vitrina.targets import TargetPolicy, parse_target


def check(definition: Definition, policy: TargetPolicy | None) -> None:
    """Raise `Invalid` with every violation. For a pipeline without tasks, only the target is checked.

    Without a policy the target is not checked either: a caller that only reads may not have chosen one yet.
    """
    found = violations(definition.tasks, after_source=definition.python_source is not None)
    found += target_violations(definition, policy) if policy else []
    if found:
        plan = "run.bad_tasks" if definition.tasks else "run.bad_target"
        raise Invalid(say(plan, name=definition.name, problems=[error.message for error in found]), tuple(found))


def violations(tasks: Sequence[Task], *, after_source: bool = False) -> list[FieldError]:
    """List the errors of the steps themselves, in the order of the plan."""
    kinds = _kinds(tasks, after_source=after_source)
    return [*_order(tasks), *_contents(tasks), *kinds, *_names(tasks), *_overrides(tasks)]


def _order(tasks: Sequence[Task]) -> list[FieldError]:
    """Check that the order is unique and gapless, from 0 or from 1."""
    indexes = [task.order_index for task in tasks]
    repeated = sorted(index for index, count in Counter(indexes).items() if count > 1)
    if repeated:
        positions = [position for position, index in enumerate(indexes) if index == repeated[0]]
        return [
            FieldError(
                f"tasks.{positions[1]}.order_index",
                say("definition.order_repeated", order=repeated[0], steps=len(positions)),
                "task_order_repeated",
            )
        ]
    if not indexes:
        return []
    first = min(indexes)
    if first > 1:
        return [
            FieldError(
                f"tasks.{indexes.index(first)}.order_index",
                say("definition.order_begins", first=first),
                "task_order_start",
            )
        ]
    missing = sorted(set(range(first, max(indexes) + 1)) - set(indexes))
    if missing:
        after = min(index for index in indexes if index > missing[0])
        return [
            FieldError(
                f"tasks.{indexes.index(after)}.order_index",
                say("definition.order_gap", order=missing[0]),
                "task_order_gap",
            )
        ]
    return []


def _contents(tasks: Sequence[Task]) -> list[FieldError]:
    return [
        FieldError(
            f"tasks.{position}.{field}",
            say("definition.step_lacks", step=task.order_index, field=field),
            f"{field}_empty",
        )
        for position, task in enumerate(tasks)
        for field, value in (("task_type", task.task_type), ("body", task.body))
        if not value.strip()
    ]


def _kinds(tasks: Sequence[Task], *, after_source: bool) -> list[FieldError]:
    """Check that the first step reads with SQL, unless a Python source does, and that the others are Python steps."""
    found = []
    for step, (position, task) in enumerate(_ordered(tasks), start=int(after_source)):
        if step == 0 and task.task_type != "SQL":
            message = say("definition.first_step", task_type=task.task_type)
            found.append(FieldError(f"tasks.{position}.task_type", message, "task_first_not_sql"))
        if step > 0 and task.task_type != "PYTHON":
            message = say("definition.other_steps", step=task.order_index)
            found.append(FieldError(f"tasks.{position}.task_type", message, "task_not_python"))
    return found


def _names(tasks: Sequence[Task]) -> list[FieldError]:
    """Refuse dotted paths: a Python step is looked up among registered functions, never imported."""
    return [
        FieldError(f"tasks.{position}.body", not_a_step_name(f"step {task.order_index}", task.body), "step_name")
        for position, task in enumerate(tasks)
        if task.task_type == "PYTHON" and task.body.strip() and not STEP_NAME.fullmatch(task.body)
    ]


def _overrides(tasks: Sequence[Task]) -> list[FieldError]:
    return [
        FieldError(
            f"tasks.{position}.target_table",
            say("definition.target_of_step", step=task.order_index, target=task.target_table),
            "task_target_not_last",
        )
        for position, task in _ordered(tasks)[:-1]
        if task.target_table
    ]


def target_violations(definition: Definition, policy: TargetPolicy) -> list[FieldError]:
    """Check all targets, also the pipeline's own if the last step overrides it: the override may be removed later."""
    found = []
    for path, target in _targets(definition):
        try:
            parse_target(target, policy)
        except ForbiddenTarget as exc:
            found.append(FieldError(path, exc.message, exc.code))
    return found


def _targets(definition: Definition) -> list[tuple[str, str]]:
    named = [("target_table", definition.target_table)]
    ordered = _ordered(definition.tasks)
    if ordered and ordered[-1][1].target_table:
        position, last = ordered[-1]
        named.append((f"tasks.{position}.target_table", last.target_table or ""))
    return named


def _ordered(tasks: Sequence[Task]) -> list[tuple[int, Task]]:
    """Sort steps in the order of execution, each with its position in the author's list."""
    return sorted(enumerate(tasks), key=lambda numbered: numbered[1].order_index)
