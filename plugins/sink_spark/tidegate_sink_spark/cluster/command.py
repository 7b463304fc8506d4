"""``tidegate sink submit``: the job of a sink as a file that ``spark-submit`` runs.

Entry point ``sink`` of the group ``tidegate.commands``, with what :mod:`tidegate_sink_spark.verify.command` has.
"""

from __future__ import annotations

import os
import shlex
from pathlib import Path
from typing import Annotated, cast

import typer

from tidegate.spi import CommandHost, ConfigError
from tidegate_sink_spark.verify.command import app


@app.command()
def submit(
    context: typer.Context,
    name: Annotated[str, typer.Argument(metavar="NAME", help="The sink.")],
    output: Annotated[
        Path,
        typer.Option(
            "--output", "-o", metavar="DIRECTORY", help="Directory to write the files to."
        ),
    ] = Path(),
    config: Annotated[
        Path | None,
        typer.Option("--config", "-c", metavar="FILE", help="The gateway's configuration file."),
    ] = None,
) -> None:
    """Write the job of a sink with `job = "submitted"`, and print the command that starts it.

    The files are one that Python runs and Spark's settings; the job reads staged files from
    `staging_directory`, which the machine of the driver and all workers must have.
    """
    from tidegate_sink_spark._options import SparkSinkOptions
    from tidegate_sink_spark.cluster.bundle import write_bundle, write_properties
    from tidegate_sink_spark.cluster.engine import exchange_directory
    from tidegate_sink_spark.cluster.place import submitted_conf
    from tidegate_sink_spark.job.session import properties_text

    host: CommandHost = context.obj
    (sink,) = host.sinks(config, "spark", name)
    options = cast("SparkSinkOptions", sink.options)
    if options.job != "submitted":
        raise ConfigError(
            f'the gateway starts the job of the sink {name!r} itself; set job = "submitted" for one that '
            "spark-submit starts",
            key="job",
        )
    output.mkdir(parents=True, exist_ok=True)
    job = output.absolute() / f"tidegate-sink-{name}.py"
    properties = job.with_suffix(".properties")
    write_properties(properties, properties_text(submitted_conf(options, os.environ)))
    write_bundle(job, exchange_directory(options, sink.context))
    typer.echo(
        f"spark-submit --master MASTER --properties-file {shlex.quote(str(properties))} "
        f"{shlex.quote(str(job))}"
    )
