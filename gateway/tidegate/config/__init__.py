"""The configuration: one TOML file, read once into frozen values, resolved against the plugins.

``load_config`` knows the file, ``resolve`` knows the installed plugins, and ``check_parts`` creates each part once;
together they find every error in a configuration before anything runs. The reference is docs/configuration.md.
"""

from __future__ import annotations

from tidegate.config._certificates import (
    CertificateWatch,
    Lasts,
    certificate_ends,
    certificate_problem,
    lasts,
)
from tidegate.config._check import (
    check_parts,
    require_acknowledged_log,
    require_measured_store,
)
from tidegate.config._limits import DEFAULT_QUOTA, Quota, quota_for
from tidegate.config._load import base_of, load_config, parse_config
from tidegate.config._model import (
    DEFAULT_LISTENERS,
    DESCRIPTORS_RESERVED,
    STORE_PLUGIN_DEFAULT,
    BrokerConfig,
    Config,
    ExtensionTable,
    ListenerTable,
    SinkTable,
    StoreTable,
)
from tidegate.config._policies import (
    CURSOR_DEFAULT,
    CURSOR_UNSTORED_DEFAULT,
    DEFAULT_POLICY,
    SPOOLED,
    DestinationPolicy,
    PolicyTable,
)
from tidegate.config._policy_effect import applies
from tidegate.config._policy_map import PolicyMap, ranked, why_before
from tidegate.config._resolve import (
    ResolvedConfig,
    ResolvedExtension,
    ResolvedListener,
    ResolvedSink,
    ResolvedStore,
    named_plugins,
    resolve,
    resolve_listeners,
)
from tidegate.config._written import HIDDEN, option_values, options_set, plain_value, toml_text
from tidegate.spi.clients.bind import Bind, parse_bind

__all__ = [
    "CURSOR_DEFAULT",
    "CURSOR_UNSTORED_DEFAULT",
    "DEFAULT_LISTENERS",
    "DEFAULT_POLICY",
    "DEFAULT_QUOTA",
    "DESCRIPTORS_RESERVED",
    "HIDDEN",
    "SPOOLED",
    "STORE_PLUGIN_DEFAULT",
    "Bind",
    "BrokerConfig",
    "CertificateWatch",
    "Config",
    "DestinationPolicy",
    "ExtensionTable",
    "Lasts",
    "ListenerTable",
    "PolicyMap",
    "PolicyTable",
    "Quota",
    "ResolvedConfig",
    "ResolvedExtension",
    "ResolvedListener",
    "ResolvedSink",
    "ResolvedStore",
    "SinkTable",
    "StoreTable",
    "applies",
    "base_of",
    "certificate_ends",
    "certificate_problem",
    "check_parts",
    "lasts",
    "load_config",
    "named_plugins",
    "option_values",
    "options_set",
    "parse_bind",
    "parse_config",
    "plain_value",
    "quota_for",
    "ranked",
    "require_acknowledged_log",
    "require_measured_store",
    "resolve",
    "resolve_listeners",
    "toml_text",
    "why_before",
]
