#!/usr/bin/env bash
# Gets and starts the brokers that the benchmark compares Tidegate with.
#
#   peers.sh check NAME WORK_DIR                          exit 0 when NAME can run; else one line says what it needs
#   peers.sh fetch NAME WORK_DIR                          download what NAME needs into WORK_DIR (artemis, classic)
#   peers.sh version NAME WORK_DIR                        print which version that is
#   peers.sh run   NAME WORK_DIR STOMP_PORT MQTT_PORT AUX_PORT AUX_PORT
#                                                         run NAME on 127.0.0.1, in the foreground, on an empty store
#   peers.sh clean NAME WORK_DIR                          remove what NAME has stored; it must not be running
#
# NAME is artemis, classic, rabbitmq, mosquitto or nats. Everything is written below WORK_DIR. What each one
# promises before it confirms, and why each option is as it is, stands in docs/benchmarks.md.
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
artemis_version=${ARTEMIS_VERSION:-2.44.0}

fail() { echo "$*" >&2; exit 1; }
need() { command -v "$1" >/dev/null || fail "$1 is not installed${2:+ ($2)}"; }

usage() { sed -n '2,12s/^# \{0,1\}//p' "${BASH_SOURCE[0]}" >&2; exit 2; }
[ $# -ge 3 ] || usage
action=$1 name=$2
mkdir -p "$3"
work=$(cd "$3" && pwd)
export HOME=$work # what a broker keeps "for the user" (Erlang's cookie) stays in the work directory too

artemis_home=${ARTEMIS_HOME:-$work/apache-artemis-$artemis_version}
maven() { HOME=$real_home mvn -q -B -Dstyle.color=never "$@"; }
real_home=$(getent passwd "$(id -u)" | cut -d: -f6)

check() {
  case $name in
  artemis) need java "17 or newer"; [ -x "$artemis_home/bin/artemis" ] || fail "Artemis $artemis_version is not in $work" ;;
  classic) need java "17 or newer"; [ -f "$work/classic/target/classes/Classic.class" ] || fail "ActiveMQ Classic is not in $work" ;;
  rabbitmq) [ -x /usr/lib/rabbitmq/bin/rabbitmq-server ] || fail "rabbitmq-server is not installed" ;;
  mosquitto) need mosquitto ;;
  nats) need nats-server ;;
  *) usage ;;
  esac
}

version() {
  case $name in
  artemis) echo "$artemis_version" ;;
  classic) sed -n 's#.*<activemq.version>\(.*\)</activemq.version>.*#\1#p' "$here/classic/pom.xml" ;;
  rabbitmq) basename /usr/lib/rabbitmq/lib/rabbitmq_server-* | sed 's/.*-//' ;;
  mosquitto) { mosquitto -h || true; } | sed -n '1s/.*version //p' ;;
  nats) nats-server --version | sed 's/.*: *v*//' ;;
  *) usage ;;
  esac
}

fetch() {
  case $name in
  artemis)
    need java "17 or newer"; need mvn
    maven dependency:copy -Dartifact="org.apache.activemq:apache-artemis:$artemis_version:tar.gz:bin" \
      -DoutputDirectory="$work/download"
    tar -xzf "$work/download/apache-artemis-$artemis_version-bin.tar.gz" -C "$work"
    ;;
  classic)
    need java "17 or newer"; need mvn
    rm -rf "$work/classic"
    cp -r "$here/classic" "$work/classic"
    (cd "$work/classic" && maven package dependency:copy-dependencies -DoutputDirectory=lib)
    ;;
  rabbitmq | mosquitto | nats) fail "$name comes from the system's packages (Debian: rabbitmq-server, mosquitto, nats-server)" ;;
  *) usage ;;
  esac
}

clean() {
  case $name in
  artemis) rm -rf "$work/artemis-$artemis_version-instance/data" ;;
  *) rm -rf "$work/$name-state" ;;
  esac
}

run() {
  local stomp=$1 mqtt=$2 aux=$3 aux2=$4
  local state=$work/$name-state
  check
  case $name in
  artemis)
    local instance=$work/artemis-$artemis_version-instance
    if [ ! -f "$instance/etc/broker.xml.made" ]; then
      rm -rf "$instance"
      # The instance is made once; without --no-autotune its journal's flush interval is set by a measurement of
      # this disk, as for any installation.
      "$artemis_home/bin/artemis" create "$instance" --silent --user bench --password bench --require-login --nio \
        --no-web --no-amqp-acceptor --no-hornetq-acceptor ${ARTEMIS_CREATE_OPTIONS:-} >"$work/artemis-create.log"
      cp "$instance/etc/broker.xml" "$instance/etc/broker.xml.made"
    fi
    clean
    sed -E "s#tcp://0\.0\.0\.0:#tcp://127.0.0.1:#; s#(127\.0\.0\.1):61616#\1:$aux#; s#(127\.0\.0\.1):61613#\1:$stomp#; \
s#(127\.0\.0\.1):1883#\1:$mqtt#; \
${ARTEMIS_GLOBAL_MAX_SIZE:+s#( *)<global-max-messages>#\1<global-max-size>$ARTEMIS_GLOBAL_MAX_SIZE</global-max-size>\n&#}" \
      "$instance/etc/broker.xml.made" >"$instance/etc/broker.xml"
    exec "$instance/bin/artemis" run
    ;;
  classic)
    clean
    exec java -Xms512M -Xmx2G -cp "$work/classic/target/classes:$work/classic/lib/*" Classic "$state" "$stomp" "$mqtt" \
      ${CLASSIC_JDBC_URL:+"$CLASSIC_JDBC_URL"}
    ;;
  rabbitmq)
    clean
    mkdir -p "$state"
    cat >"$state/rabbitmq.conf" <<CONF
listeners.tcp.local = 127.0.0.1:$aux
stomp.listeners.tcp.1 = 127.0.0.1:$stomp
mqtt.listeners.tcp.default = 127.0.0.1:$mqtt
mqtt.prefetch = 1000
CONF
    echo '[rabbitmq_stomp,rabbitmq_mqtt].' >"$state/enabled_plugins"
    # Erlang's port mapper would outlive the broker as a daemon; as a child here it ends with the process group.
    export ERL_EPMD_PORT=$aux2 ERL_EPMD_ADDRESS=127.0.0.1
    epmd &
    export RABBITMQ_NODENAME=bench@localhost RABBITMQ_DIST_PORT=$((aux2 + 1)) RABBITMQ_MNESIA_BASE=$state/mnesia \
      RABBITMQ_LOG_BASE=$state/log RABBITMQ_CONFIG_FILE=$state/rabbitmq \
      RABBITMQ_ENABLED_PLUGINS_FILE=$state/enabled_plugins
    exec /usr/lib/rabbitmq/bin/rabbitmq-server
    ;;
  mosquitto)
    clean
    mkdir -p "$state"
    chmod 777 "$state" # started by root, it changes to a user of its own
    cat >"$state/mosquitto.conf" <<CONF
listener $mqtt 127.0.0.1
allow_anonymous true
persistence true
persistence_location $state/
autosave_interval 1
max_queued_messages 0
max_inflight_messages 0
CONF
    exec mosquitto -c "$state/mosquitto.conf"
    ;;
  nats)
    clean
    mkdir -p "$state"
    cat >"$state/nats.conf" <<CONF
listen: "127.0.0.1:$aux"
server_name: bench
jetstream { store_dir: "$state/jetstream" }
mqtt { listen: "127.0.0.1:$mqtt", max_ack_pending: 10000 }
CONF
    exec nats-server -c "$state/nats.conf"
    ;;
  *) usage ;;
  esac
}

case $action in
check | fetch | version | clean) "$action" ;;
run) [ $# -eq 7 ] || usage; run "${@:4}" ;;
*) usage ;;
esac
