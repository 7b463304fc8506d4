"""A gateway process with an MQTT listener for each transport, for MQTT clients that are not ours."""

from __future__ import annotations

import ssl
from pathlib import Path

import trustme
from free_ports import free_port
from gateway_process import GatewayProcess


class MqttGateway(GatewayProcess):
    """TCP (and STOMP) as its parent; TLS, WebSocket and WSS beside them.

    Attributes: ports: by transport; cafile: the authority of its certificate, as PEM.
    """

    def __init__(self, directory: Path, *, options: str = "", broker: str = "") -> None:
        authority = trustme.CA()
        certificate = directory / "server.pem"
        self.cafile = str(directory / "ca.pem")
        authority.cert_pem.write_to_path(self.cafile)
        authority.issue_cert("127.0.0.1", "localhost").private_key_and_cert_chain_pem.write_to_path(
            str(certificate)
        )
        self.ports = {kind: free_port() for kind in ("tls", "ws", "wss")}
        extra = "".join(
            f'\n[[listeners]]\nprotocol = "mqtt"\ntransport = "{kind}"\n'
            f'bind = "127.0.0.1:{port}"\n{options}\n'
            + ("" if kind == "ws" else f'tls_certificate = "{certificate}"\n')
            for kind, port in self.ports.items()
        )
        super().__init__(directory, extra=extra, broker=broker)
        self.ports["tcp"] = self.mqtt_port

    def context(self) -> ssl.SSLContext:
        """What a client needs to trust it."""
        return ssl.create_default_context(cafile=self.cafile)
