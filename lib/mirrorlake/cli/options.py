"""Options that commands share: those of the notebooks, with the same names, defaults and environment variables."""

from __future__ import annotations

import math
import os
import re
import shlex
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from mirrorlake.cli import output
from mirrorlake.errors import ConfigurationError

if TYPE_CHECKING:
    from mirrorlake.config.flow import Flow
    from mirrorlake.config.properties import Properties
    from mirrorlake.notebook.runtime import Parameters

EXTRAS = {  # of the wheel, by the packages that they bring
    "pyspark": "spark",
    "delta": "spark",
    "deltalake": "cli",
    "papermill": "notebooks",
    "nbconvert": "notebooks",
    "ipykernel": "notebooks",
    "matplotlib": "notebooks",
}
NOTEBOOKS = ("pyspark", "papermill", "nbconvert", "ipykernel", "matplotlib")  # what a command that runs some needs
CONFIG, WAREHOUSE, CATALOG, SCHEMA = ".local/mirrorlake.properties", ".local/warehouse", "spark_catalog", "mirrorlake"

Command = TypeVar("Command", bound=Callable[..., Any])


def variable(name: str) -> str:
    """Names the environment variable of a parameter, as notebooks do."""
    return f"MIRRORLAKE_{name.upper()}"


def parameter(name: str, default: str, text: str, **settings: Any) -> Callable[[Command], Command]:
    """Makes the option of a notebook's parameter: underscores become dashes."""
    return click.option(
        f"--{name.replace('_', '-')}",
        name,
        cls=_Parameter,
        default=default,
        show_default=bool(default),
        envvar=variable(name),
        help=text,
        **settings,
    )


class _Parameter(click.Option):
    """An option whose variable counts if it is empty, as it does for notebooks: `empty` means something for many."""

    def resolve_envvar_value(self, ctx: click.Context) -> str | None:
        if isinstance(self.type, click.types.StringParamType) and isinstance(self.envvar, str):
            return os.environ.get(self.envvar)
        return super().resolve_envvar_value(ctx)


class Number(click.FloatRange):
    """A number within bounds. One that is not finite is none, although Python reads `nan` and `inf` as such."""

    name = "number"

    def convert(self, value: Any, option: click.Parameter | None, context: click.Context | None) -> Any:
        found = super().convert(value, option, context)
        if not math.isfinite(found):
            self.fail(f"{value!r} is not a number.", option, context)
        return found


SECONDS = Number(0, 86_400, min_open=True)


def _complete_flow(context: click.Context, _: click.Parameter, incomplete: str) -> list[str]:
    from mirrorlake.config.properties import Properties

    try:
        names = Properties.load(context.params.get("config") or CONFIG).flows
    except ConfigurationError:
        return []
    return [name for name in names if name.startswith(incomplete)]


config = parameter(
    "config",
    CONFIG,
    "property file in MirrorMaker 2's format",
    metavar="FILE",
    type=click.Path(),
    is_eager=True,  # completion of --flow reads it
)
flow = parameter(
    "flow", "", "source->target; not needed if the file has one flow", metavar="FLOW", shell_complete=_complete_flow
)
flows = parameter(
    "flow", "", "source->target, or several, separated by commas; all of the file if left out", metavar="FLOWS",
    shell_complete=_complete_flow,
)  # fmt: skip


def _remember(context: click.Context, option: click.Parameter, value: Any) -> None:
    context.meta[f"mirrorlake.{option.name}"] = value


def common(command: Command) -> Command:
    """Adds the options of every command; their values are in the context (`given`)."""
    return click.option(
        "--output",
        type=click.Choice([output.TABLE, output.JSON]),
        default=output.TABLE,
        show_default=True,
        envvar=variable("output"),
        help="json: one object on standard output",
        expose_value=False,
        is_eager=True,
        callback=_remember,
    )(
        click.option(
            "--debug",
            is_flag=True,
            help="show the stack trace of an error, and log lines of all levels",
            expose_value=False,
            is_eager=True,
            callback=_remember,
        )(command)
    )


trigger = parameter(
    "trigger",
    "availableNow",
    "availableNow: do what there is now, then end; 'N seconds': until stopped; empty: until stopped, every 0.3 seconds "
    "(mirror), or every emit.checkpoints.interval.seconds (checkpoint)",
)
run_for = parameter("run_for", "", "stop after 'N seconds', 'N minutes' or 'N hours'; empty: no limit")
checkpoints = parameter("checkpoints", "", "directory for Spark's own progress; empty: beside the tables")


warehouse = parameter("warehouse", WAREHOUSE, "local directory of the tables", metavar="DIR")
schema = parameter("schema", SCHEMA, "schema of the tables")


def tables(command: Command) -> Command:
    """Adds the options that name the tables."""
    return warehouse(parameter("catalog", CATALOG, "catalog of the tables")(schema(command)))


def one_flow(command: Command) -> Command:
    """Adds the options that name a flow and its tables."""
    return config(flow(tables(command)))


@dataclass(frozen=True)
class ChosenFlows:
    """The flows of a property file that a command is about."""

    properties: Properties
    names: tuple[str, ...]


def choose(config: str, flows: str) -> ChosenFlows:
    """Reads the property file and the names of the flows; all flows of the file if none is named.

    Raises:
        ConfigurationError: the file can't be read, has no flow, or does not have a flow that is named.
    """
    properties = _loaded(config)
    enabled = properties.flows
    if not enabled:
        raise ConfigurationError(f"{config} enables no flow. Set <source>-><target>.enabled = true")
    named = tuple(name.strip() for name in flows.split(",") if name.strip())
    for name in named:
        _require_quoted(name)
    wanted = tuple(properties.scope(name).flow for name in named)
    for name in wanted:
        if name not in enabled:
            raise ConfigurationError(f"flow {name} is not enabled in {config}; enabled: {', '.join(enabled)}")
    return ChosenFlows(properties, wanted or enabled)


def load_flow(config: str, name: str) -> Flow:
    """Reads the flow of that name, or the only one of the file.

    Raises:
        ConfigurationError: the file can't be read, has several flows and none is named, or the flow is not valid.
    """
    from mirrorlake.config.flow import Flow

    _require_quoted(name)
    return Flow.load(config, name or only_flow(config))


def only_flow(config: str) -> str:
    """Returns the name of the only flow of a file.

    Raises:
        ConfigurationError: the file can't be read, or has none or several.
    """
    names = _loaded(config).flows
    if len(names) != 1:
        raise ConfigurationError(
            f"{config} enables {len(names) or 'no'} flow{'s' if names else ''}"
            + (f": {', '.join(names)}. Name one of them: --flow '{names[0]}'" if names else "; enable one")
        )
    return names[0]


def _require_quoted(name: str) -> None:
    if name.endswith("-"):
        raise ConfigurationError(
            f"flow '{name}' ends with -: the shell has taken > for a redirection to a file. Quote the flow: "
            f"--flow '{name}>target'"
        )


def _loaded(config: str) -> Properties:
    from mirrorlake.config.properties import Properties

    try:
        return Properties.load(config)
    except ConfigurationError as error:
        if config != CONFIG or "can't be read" not in error.message:
            raise
        raise ConfigurationError(f"{error.message}. Name your property file: --config FILE") from None


def lacking(*packages: str) -> ConfigurationError | None:
    """Returns the error for packages that are not installed; None if the wheel has no extra that brings them."""
    if not {*packages} <= EXTRAS.keys():
        return None
    extras = ",".join(dict.fromkeys(EXTRAS[name] for name in packages))
    return ConfigurationError(f"this command needs {' and '.join(packages)}: pip install 'mirrorlake[{extras}]'")


def require(*packages: str) -> None:
    """Requires packages of the wheel's extras, before anything is done that would be in vain.

    Raises:
        ConfigurationError: some are not installed.
    """
    missing = [name for name in packages if find_spec(name) is None]
    if missing and (error := lacking(*missing)):
        raise error


def typed(advice: str, config: str) -> str:
    """Returns an advice whose commands can be typed here: with the property file, and as `./mirrorlake` in a checkout.

    Args:
        advice: words with commands of the form `mirrorlake COMMAND --flow ...`.
        config: the property file that this command was given.
    """
    from mirrorlake import resources

    here = ""
    with suppress(OSError):  # the folder may be gone
        here = "./" if resources.checkout() == Path.cwd() else ""
    named = "" if config == CONFIG else f" --config {shlex.quote(config)}"
    return re.sub(r"\bmirrorlake ([a-z]+)(?= --flow )", lambda found: f"{here}mirrorlake {found[1]}{named}", advice)


def parameters(**given: str) -> Parameters:
    """Returns the parameters that commands share with notebooks."""
    from mirrorlake.notebook.runtime import Parameters

    return Parameters(**given)
