"""Commands about files: what is wrong with a job or with rules before they are applied, and what a job would be given."""

import re
import sys
from datetime import timedelta
from pathlib import Path
from typing import Annotated, Any

import yaml
from cyclopts import Parameter
from rich.text import Text

from rekindle.cli.exits import Exit
from rekindle.cli.output import Format, Output, print_columns, print_json
from rekindle.cli.terminal import console
from rekindle.errors import BadInput
from rekindle.model.bounds import cut, numbered
from rekindle.model.rule_file import parse, rules_of
from rekindle.model.rules import Named, Rule, Rules, Then
from rekindle.policy.modes.chances import Chance
from rekindle.policy.parameters import own
from rekindle.policy.parameters.catalog import PARAMETERS, schema
from rekindle.policy.parameters.checks import findings, injected
from rekindle.policy.parameters.environment import Table
from rekindle.policy.parameters.findings import Finding, Level, warning
from rekindle.policy.parameters.job_file import ACCEPTED, JobFile, jobs_of, unknown_jobs
from rekindle.policy.parameters.reading import Document, as_text, mapping
from rekindle.policy.parameters.values import QUOTED

UNKNOWN = warning("kind", f"not checked: it is no kind of training job that Rekindle reads (accepted: {ACCEPTED})")
"""Finding about a job of an unknown kind, in a file with others."""

STYLES = {Level.ERROR: "red", Level.WARNING: "yellow"}

JobOrRules = Annotated[Path, Parameter(allow_leading_hyphen=True, help="YAML; - reads standard input.")]

RULES = re.compile(r"^kind:\s*[\"']?Rules\b", re.MULTILINE)


async def check(file: JobOrRules, *, output: Output = Format.TEXT) -> Exit:
    """Check FILE before it is applied: training jobs of any kind, or rules (a file, or a ready-made set: plain, nvidia, ascend).

    Of a job, each wrong, misspelt or contradictory setting is listed, with what is accepted. Of rules, what they say is listed,
    and whether some hide others. The exit code is 2 if there is an error.

    Example: rekindle check job.yaml
    """
    content = _content(file)
    if content is None:
        _show_rules(str(file), rules_of(str(file)), output)
        return Exit.DONE
    try:
        jobs = jobs_of(content)
    except BadInput:
        if RULES.search(content) is None:
            raise
        _show_rules(str(file), parse(content), output)
        return Exit.DONE
    found = [(_named(job.document, job.kind), findings(job)) for job in jobs]
    found += [(_named(one, as_text(one.get("kind"))), [UNKNOWN]) for one in unknown_jobs(content)]
    if output is Format.JSON:
        print_json([{**named, "findings": [_as_json(one) for one in problems]} for named, problems in found])
    else:
        for named, problems in found:
            _show_findings(named, problems)
    return Exit.BAD_INPUT if any(one.level is Level.ERROR for _, problems in found for one in problems) else Exit.DONE


async def render(file: JobOrRules, *, table: Table = Table.OPERATOR, output: Output = Format.TEXT) -> None:
    """Show what the jobs of FILE would be given: environment variables, and the modes that they can have.

    For each mode that a job cannot have, the reasons are listed.

    Example: rekindle render job.yaml

    Args:
        table: environment variables as the Ascend Operator injects them, or as they are published.
    """
    content = _content(file)
    if content is None:
        raise BadInput(f"FILE: {file} is a ready-made set of rules, accepted is the file of a job")
    jobs = jobs_of(content)
    rendered = [(job, injected(job, table), own.modes(job), _errors(findings(job))) for job in jobs]
    if output is Format.JSON:
        print_json(
            [
                {**_named(job.document, job.kind), "env": env, "modes": [_mode(one) for one in modes], "errors": errors}
                for job, env, modes, errors in rendered
            ]
        )
        return
    for job, env, modes, errors in rendered:
        console.print(Text(_title(_named(job.document, job.kind)), style="bold"))
        words = yaml.safe_dump([{"name": name, "value": value} for name, value in sorted(env.items())], sort_keys=False)
        console.print(Text(f"env:{_injector(job)}\n{words}" if env else "env: nothing is injected\n"), soft_wrap=True, end="")
        rows = [(one.mode.value, numbered("pod rank", one.pod_ranks) if one.pod_ranks else "", _verdict(one)) for one in modes]
        print_columns(("mode", "of", "possible"), rows)
        if errors:
            _say(f"{_counted(errors, 'error')} of this file may prevent what is possible here: rekindle check {file}")


async def parameters(*, output: Output = Format.TEXT) -> None:
    """List the parameters that a job may carry, with where they stand and what is accepted.

    As JSON, it is a schema of the metadata of a job, for editors and admission policies.

    Example: rekindle parameters --output json > job-metadata.schema.json
    """
    if output is Format.JSON:
        print_json(schema())
        return
    rows = [(one.name, one.place.value, one.values.accepted, one.default or "-", one.effect) for one in PARAMETERS]
    print_columns(("parameter", "where", "accepted", "default", "effect"), rows)


def _content(file: Path) -> str | None:
    """Returns the text of a file. None: a ready-made set of rules is meant."""
    if str(file) == "-":
        try:
            return sys.stdin.read()
        except (OSError, UnicodeDecodeError) as error:
            raise BadInput(f"FILE: standard input cannot be read: {error}") from error
    if file.suffix not in (".yaml", ".yml", ".json") and "/" not in str(file) and not file.exists():
        return None
    try:
        return file.read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise BadInput(f"FILE: {file} cannot be read: {error}") from error


def _injector(job: JobFile) -> str:
    return "" if job.row.of_mindcluster else "  # by the admission webhook, if it is installed"


def _show_findings(named: dict[str, Any], problems: list[Finding]) -> None:
    console.print(Text(_title(named), style="bold"))
    for one in problems:
        level = Text(f"  {one.level.value}: ", style=STYLES[one.level])
        console.print(level.append(f"{one.field}: {one.message}", style="default"), soft_wrap=True)
        if one.fix:
            console.print(Text(f"    write: {one.fix}"), soft_wrap=True)
    errors = _errors(problems)
    _say(f"  {_counted(errors, 'error')}, {_counted(len(problems) - errors, 'warning')}")


def _errors(problems: list[Finding]) -> int:
    return sum(one.level is Level.ERROR for one in problems)


def _counted(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"


def _title(named: dict[str, Any]) -> str:
    return " ".join(f"{named['kind']} {named['namespace']}/{named['name'] or '(no name)'}".splitlines())


def _named(document: Document, kind: str) -> dict[str, Any]:
    metadata = mapping(document.get("metadata"))
    name = as_text(metadata.get("name")) or as_text(metadata.get("generateName"))
    namespace = as_text(metadata.get("namespace")) or "default"
    return {"kind": cut(kind, QUOTED), "namespace": cut(namespace, QUOTED), "name": cut(name, QUOTED)}


def _as_json(one: Finding) -> dict[str, str]:
    return {"level": one.level.value, "field": one.field, "message": one.message, "fix": one.fix}


def _mode(one: Chance) -> dict[str, Any]:
    return {"mode": one.mode.value, "pods": list(one.pod_ranks), "against": list(one.against)}


def _verdict(one: Chance) -> str:
    return "yes" if not one.against else f"no: {'; '.join(one.against)}"


# ---- rules


def _show_rules(file: str, rules: Rules, output: Format) -> None:
    if output is Format.JSON:
        print_json([one.model_dump(mode="json", exclude_defaults=True) for one in rules.rules])
        return
    rows = [(one.name, one.rule.source, one.rule.then.value, *_times(one.rule), _most(one, rules)) for one in rules.rules]
    print_columns(("rule", "decides about", "says", "settles after", "over after", "told once, counts", "believed up to"), rows)
    _say(f"{file}: rules: {len(rules.rules)}, {_reads(rules)}")
    _say("believed up to: so many of the cluster's nodes may be faulty or sub-healthy at once by that rule (maxUnhealthy)")


def _reads(rules: Rules) -> str:
    return f"reads: nodes and pods{''.join(f', {one}' for one in sorted(rules.reporters))}"


def _most(one: Named, rules: Rules) -> str:
    return f"{rules.most(one.name)}%" if one.name in rules.doubtful else "-"


def _times(rule: Rule) -> tuple[str, ...]:
    lasting = [rule.lasts(source) for source in rule.report.source] if rule.report and rule.then is not Then.NOTHING else []
    once = max((one for one in lasting if one), default=timedelta())
    return tuple(_seconds(one.total_seconds()) for one in (rule.settle, rule.clear, once))


def _seconds(seconds: float) -> str:
    return f"{seconds:g} s" if seconds else "-"


def _say(text: str) -> None:
    console.print(text, soft_wrap=True, highlight=False, markup=False)
