"""Where Delta's jars come from. The repository is a directory; Spark's resolver is a script."""

import dataclasses
import hashlib
import http.server
import threading
import zipfile
from pathlib import Path

import pytest

from tidegate.spi import ConfigError
from tidegate_sink_spark import SparkSinkOptions
from tidegate_sink_spark.java import jars
from tidegate_sink_spark.java.jars import (
    ARTIFACTS,
    Artifact,
    JarsError,
    artifacts_of,
    cache_directory,
    check_choice,
    configured_repository,
    download,
    ensure_jars,
    is_whole,
    ivy_repository,
    maven_mirror,
    resolve,
)
from tidegate_sink_spark.java.runtime import spark_home


def make_jar(path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(path, "w") as jar:
        jar.writestr("META-INF/MANIFEST.MF", path.name)


@pytest.fixture(autouse=True)
def any_jar_will_do(monkeypatch: pytest.MonkeyPatch) -> None:
    """The jars of these tests hold nothing; those that are meant have digests of their own."""
    plain = tuple(dataclasses.replace(artifact, sha256="") for artifact in ARTIFACTS)
    monkeypatch.setattr(jars, "ARTIFACTS", plain)


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """A Maven repository with both jars and their digests."""
    root = tmp_path / "repository"
    for artifact in ARTIFACTS:
        path = root / artifact.path
        make_jar(path)
        digest = hashlib.sha1(path.read_bytes()).hexdigest()
        path.with_name(f"{path.name}.sha1").write_text(f"{digest}  {path.name}\n")
    return root


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    cache = tmp_path / "cache"
    cache.mkdir()
    return cache


def make_spark(tmp_path: Path, script: str) -> dict[str, str]:
    """An environment whose spark-submit is *script*."""
    submit = tmp_path / "spark" / "bin" / "spark-submit"
    submit.parent.mkdir(parents=True)
    submit.write_text(f"#!/bin/sh\n{script}\n")
    submit.chmod(0o755)
    return {"SPARK_HOME": str(tmp_path / "spark"), "PATH": "/usr/bin:/bin"}


def test_an_artifact_knows_its_place_in_a_repository() -> None:
    artifact = Artifact("io.delta", "delta-storage", "4.4.0")
    assert artifact.coordinate == "io.delta:delta-storage:4.4.0"
    assert artifact.path == "io/delta/delta-storage/4.4.0/delta-storage-4.4.0.jar"


def test_a_download_brings_both_jars_and_leaves_nothing_else(repository: Path, cache: Path) -> None:
    download(cache, repository.as_uri(), {})
    assert sorted(p.name for p in cache.iterdir()) == sorted(a.file_name for a in ARTIFACTS)
    assert all(is_whole(path) for path in cache.iterdir())


def test_a_jar_with_another_digest_is_refused(repository: Path, cache: Path) -> None:
    path = repository / ARTIFACTS[0].path
    path.with_name(f"{path.name}.sha1").write_text("0" * 40)
    with pytest.raises(JarsError, match="should have 0000"):
        download(cache, repository.as_uri(), {})
    assert list(cache.iterdir()) == []


def test_a_repository_without_digests_is_accepted(repository: Path, cache: Path) -> None:
    for path in repository.rglob("*.sha1"):
        path.unlink()
    download(cache, repository.as_uri(), {})
    assert len(list(cache.iterdir())) == 2


def test_a_page_that_is_no_jar_is_refused(repository: Path, cache: Path) -> None:
    path = repository / ARTIFACTS[0].path
    path.write_text("<html>log in first</html>")
    path.with_name(f"{path.name}.sha1").unlink()
    with pytest.raises(JarsError, match="not a whole jar"):
        download(cache, repository.as_uri(), {})
    assert list(cache.iterdir()) == []


def test_a_jar_that_never_ends_is_refused(
    repository: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(jars, "JAR_BYTES_MAX", 10)
    with pytest.raises(JarsError, match="larger than 10 bytes"):
        download(cache, repository.as_uri(), {})


def test_a_repository_of_another_scheme_is_refused(cache: Path) -> None:
    with pytest.raises(JarsError, match="neither http"):
        download(cache, "ftp://x", {})


PLAIN = ("http://repo.example/m2", "http://127.0.0.1.example/m2", "http://user@10.0.0.1:8081/m2")


@pytest.mark.parametrize("url", [*PLAIN, "HTTP://repo.example"])
def test_a_repository_that_anybody_between_could_be_is_refused(
    tmp_path: Path, cache: Path, url: str
) -> None:
    with pytest.raises(ConfigError, match="take an https address") as caught:
        check_choice(SparkSinkOptions(maven_repository=url))
    assert caught.value.key == "maven_repository"
    environment = make_spark(tmp_path, "touch asked")
    environment["TIDEGATE_MAVEN_REPOSITORY"] = url  # which no check of the options sees
    with pytest.raises(JarsError, match=r"packages: .* https address.*download: .* https address"):
        ensure_jars("auto", cache, repository="", environment=environment)
    assert list(cache.iterdir()) == []


@pytest.mark.parametrize(
    "url", ["http://localhost:1/m2", "http://127.0.0.1:1", "http://[::1]:1/m2"]
)
def test_a_repository_of_this_machine_may_be_plain(cache: Path, url: str) -> None:
    check_choice(SparkSinkOptions(maven_repository=url))
    # It is asked, and nobody is there; not every machine has IPv6.
    with pytest.raises(OSError, match=r"refused|Cannot assign requested address|not supported"):
        download(cache, url, {})


def test_a_repository_that_sends_elsewhere_cannot_send_there_either(cache: Path) -> None:
    class Away(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(302)
            self.send_header("Location", "http://repo.example/other.jar")
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None: ...

    with http.server.HTTPServer(("127.0.0.1", 0), Away) as server:
        serving = threading.Thread(target=server.serve_forever)
        serving.start()
        try:
            with pytest.raises(JarsError, match=r"repo\.example/other\.jar is neither"):
                download(cache, f"http://127.0.0.1:{server.server_port}", {})
        finally:
            server.shutdown()
            serving.join()
    assert list(cache.iterdir()) == []


def test_jars_in_the_cache_are_not_fetched_again(cache: Path) -> None:
    for artifact in ARTIFACTS:
        make_jar(cache / artifact.file_name)
    found = ensure_jars("auto", cache, repository="file:///nowhere", environment={})
    assert [path.name for path in found] == [a.file_name for a in ARTIFACTS]


def test_a_torn_jar_in_the_cache_is_fetched_again(repository: Path, cache: Path) -> None:
    for artifact in ARTIFACTS:
        (cache / artifact.file_name).write_bytes(b"PK half")
    found = ensure_jars("download", cache, repository=repository.as_uri(), environment={})
    assert all(map(is_whole, found))


def test_sparks_resolver_comes_first_and_its_jars_are_kept(
    tmp_path: Path, repository: Path, cache: Path
) -> None:
    copies = "\n".join(
        f'cp "{repository / a.path}" "$ivy/jars/{a.group}_{a.file_name}"' for a in ARTIFACTS
    )
    environment = make_spark(
        tmp_path,
        'echo "$@" > "$SPARK_HOME/arguments"\n'
        "for a do case $a in spark.jars.ivy=*) ivy=${a#spark.jars.ivy=};; esac; done\n"
        f'mkdir "$ivy/jars"\n{copies}',
    )
    found = ensure_jars(
        "auto", cache, repository="https://repo.example/m2", environment=environment
    )
    assert all(map(is_whole, found))
    assert sorted(cache.iterdir()) == sorted(found)
    arguments = (tmp_path / "spark" / "arguments").read_text()
    assert (
        "--packages io.delta:delta-spark_4.1_2.13:4.4.0,io.delta:delta-storage:4.4.0" in arguments
    )
    assert "--repositories https://repo.example/m2" in arguments
    assert "--exclude-packages" in arguments


def test_the_download_is_the_second_way(tmp_path: Path, repository: Path, cache: Path) -> None:
    environment = make_spark(tmp_path, "echo ':: NOT FOUND: delta-storage (0ms)' >&2; exit 1")
    found = ensure_jars("auto", cache, repository=repository.as_uri(), environment=environment)
    assert all(map(is_whole, found))


def test_when_both_ways_fail_the_error_says_so_and_what_to_do(tmp_path: Path, cache: Path) -> None:
    environment = make_spark(tmp_path, "echo ':: NOT FOUND: delta-storage (0ms)' >&2; exit 1")
    with pytest.raises(JarsError) as caught:
        ensure_jars("auto", cache, repository="file:///nowhere", environment=environment)
    text = str(caught.value)
    assert "packages: Spark's resolver did not bring" in text
    assert "NOT FOUND" in text
    assert "download: " in text
    assert str(cache) in text
    assert "maven_repository" in text


def test_a_resolver_that_brings_half_leaves_no_directory_behind(
    tmp_path: Path, cache: Path
) -> None:
    environment = make_spark(tmp_path, "exit 0")
    with pytest.raises(JarsError, match="did not bring"):
        resolve(cache, "", environment)
    assert list(cache.iterdir()) == []


def test_named_jars_are_taken_as_they_are(tmp_path: Path, cache: Path) -> None:
    make_jar(tmp_path / "a.jar")
    make_jar(tmp_path / "b.jar")
    choice = f"{tmp_path / 'a.jar'}, {tmp_path / 'b.jar'}"
    check_choice(SparkSinkOptions(jars=choice))
    assert ensure_jars(choice, cache, repository="", environment={}) == (
        tmp_path / "a.jar",
        tmp_path / "b.jar",
    )


def test_a_named_jar_that_is_not_there_is_a_config_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"a\.jar is not there"):
        check_choice(SparkSinkOptions(jars=str(tmp_path / "a.jar")))
    for choice in ("auto", "packages", "download"):
        check_choice(SparkSinkOptions(jars=choice))


def test_the_cache_is_the_users_unless_it_is_named(tmp_path: Path) -> None:
    assert cache_directory(str(tmp_path), {}) == tmp_path
    assert cache_directory("", {"XDG_CACHE_HOME": "/c"}) == Path("/c/tidegate/jars")
    assert cache_directory("", {}) == Path.home() / ".cache" / "tidegate" / "jars"


def test_a_repository_is_looked_for_in_option_environment_and_maven_settings(
    tmp_path: Path,
) -> None:
    settings = tmp_path / ".m2" / "settings.xml"
    settings.parent.mkdir()
    settings.write_text(
        '<settings xmlns="http://maven.apache.org/SETTINGS/1.2.0"><mirrors>'
        "<mirror><mirrorOf>snapshots</mirrorOf><url>https://no.example</url></mirror>"
        "<mirror><mirrorOf>central, jboss</mirrorOf><url> https://m.example/c </url></mirror>"
        "</mirrors></settings>"
    )
    environ = {"HOME": str(tmp_path)}
    assert configured_repository("", environ) == "https://m.example/c"
    environ["TIDEGATE_MAVEN_REPOSITORY"] = "https://e.example"
    assert configured_repository("", environ) == "https://e.example"
    assert configured_repository("https://o.example", environ) == "https://o.example"
    assert configured_repository("", {}) == ""


@pytest.mark.parametrize("text", ["", "<settings", "<settings/>"])
def test_settings_without_a_mirror_name_none(tmp_path: Path, text: str) -> None:
    path = tmp_path / "settings.xml"
    path.write_text(text)
    assert maven_mirror(path) == ""
    assert maven_mirror(tmp_path / "none.xml") == ""


def test_the_ivy_that_pyspark_brings_names_its_repository() -> None:
    assert ivy_repository(spark_home() / "jars").startswith("https://")


def test_without_any_repository_the_error_says_what_to_set(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(jars, "ivy_repository", lambda jars: "")
    with pytest.raises(JarsError, match="TIDEGATE_MAVEN_REPOSITORY"):
        download(cache, "", {})


def test_no_ivy_names_no_repository(tmp_path: Path) -> None:
    assert ivy_repository(tmp_path) == ""
    (tmp_path / "ivy-2.jar").write_bytes(b"no zip")
    assert ivy_repository(tmp_path) == ""


def pin(repository: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the jars of *repository* be those that are meant."""
    pinned = tuple(
        dataclasses.replace(
            artifact,
            sha256=hashlib.sha256((repository / artifact.path).read_bytes()).hexdigest(),
        )
        for artifact in ARTIFACTS
    )
    monkeypatch.setattr(jars, "ARTIFACTS", pinned)


def test_every_jar_that_is_fetched_is_pinned() -> None:
    assert all(len(artifact.sha256) == 64 for artifact in ARTIFACTS)


def test_another_jar_under_the_right_name_is_not_taken(
    repository: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pin(repository, monkeypatch)
    path = repository / ARTIFACTS[0].path
    download(cache, repository.as_uri(), {})
    with zipfile.ZipFile(path, "a") as jar:
        jar.writestr("Evil.class", "x")
    path.with_name(f"{path.name}.sha1").write_text(hashlib.sha1(path.read_bytes()).hexdigest())
    with pytest.raises(JarsError, match="another jar"):  # though the repository vouches for it
        download(cache, repository.as_uri(), {})
    kept = cache / ARTIFACTS[0].file_name
    assert ensure_jars("download", cache, repository="file:///nowhere", environment={})[0] == kept
    kept.write_bytes(path.read_bytes())  # somebody wrote into the cache
    with pytest.raises(JarsError):
        ensure_jars("download", cache, repository="file:///nowhere", environment={})


def test_each_format_brings_its_own_jars(cache: Path, repository: Path) -> None:
    (artifact,) = artifacts_of("iceberg")
    assert (artifact.name, len(artifact.sha256)) == ("iceberg-spark-runtime-4.1_2.13", 64)
    with pytest.raises(JarsError, match=r"Iceberg's jars .* put iceberg-spark-runtime"):
        ensure_jars(
            "download",
            cache,
            repository=repository.as_uri(),
            environment={},
            table_format="iceberg",
        )
    found = ensure_jars("auto", cache, repository="", environment={}, table_format="parquet")
    assert found == ()
