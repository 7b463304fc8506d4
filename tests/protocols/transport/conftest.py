"""Every test over sockets runs on asyncio's loop and on uvloop."""

import asyncio

import pytest
import trustme
import uvloop
from link_recorder import TIMEOUT_S


@pytest.fixture(params=["asyncio", "uvloop"])
def run(request):
    factory = uvloop.new_event_loop if request.param == "uvloop" else asyncio.new_event_loop

    def runner(coroutine):
        async def bounded():
            async with asyncio.timeout(TIMEOUT_S):
                return await coroutine

        with asyncio.Runner(loop_factory=factory) as made:
            return made.run(bounded())

    return runner


@pytest.fixture(scope="session")
def authority() -> trustme.CA:
    return trustme.CA()


@pytest.fixture(scope="session")
def files(authority, tmp_path_factory):
    """Certificates on disk: ca.pem, server.pem (chain), server.key, both.pem, client.pem, client.key."""
    directory = tmp_path_factory.mktemp("certificates")
    server = authority.issue_cert("localhost", "127.0.0.1")
    client = authority.issue_cert(
        "anna@harbour.example", common_name="anna", organization_name="Pier"
    )
    authority.cert_pem.write_to_path(directory / "ca.pem")
    chain = b"".join(blob.bytes() for blob in server.cert_chain_pems)
    (directory / "server.pem").write_bytes(chain)
    server.private_key_pem.write_to_path(directory / "server.key")
    (directory / "both.pem").write_bytes(chain + server.private_key_pem.bytes())
    client.cert_chain_pems[0].write_to_path(directory / "client.pem")
    client.private_key_pem.write_to_path(directory / "client.key")
    return directory
