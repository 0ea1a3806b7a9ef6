"""Broken values files: each is refused before anything is installed, with a message that names the value and what is accepted."""

import random
from collections.abc import Sequence
from ipaddress import IPv6Address, IPv6Network

import pytest
import yaml
from helm_python import HelmError

from tests.support.charts import Object, given, texts

BROKEN = (
    # names
    ("gatway: {replicas: 3}", "values.gatway.replicas: unknown (did you mean gateway.replicas?)"),
    ("gateway: {replcas: 3}", "values.gateway.replcas: unknown (did you mean gateway.replicas?)"),
    ("obsreve: true", "values.obsreve: unknown (did you mean observe?)"),
    ("imgae: {tag: '1'}", "values.imgae.tag: unknown (did you mean image.tag?)"),
    ("image: {digets: x}", "values.image.digets: unknown (did you mean image.digest?)"),
    ("replicas: 3", "values.replicas: unknown (did you mean control.replicas?)"),
    (
        "control: {autoscale: {enabled: true}}",
        "values.control.autoscale.enabled: unknown (did you mean control.autoscaling.enabled?)",
    ),
    ("namespace: [training]", "values.namespace: unknown (did you mean namespaces?)"),
    ("temporal: {adress: 'temporal:7233'}", "values.temporal.adress: unknown (did you mean temporal.address?)"),
    ("temporal: {tls: {secret: a}}", "values.temporal.tls.secret: unknown (did you mean temporal.tls.secretName?)"),
    ("limits: {paus: 60}", "values.limits.paus: unknown (did you mean limits.pause?)"),
    ("networkpolicy: {enabled: false}", "values.networkpolicy.enabled: unknown (did you mean networkPolicy.enabled?)"),
    ("watcher: {replicas: 2}", "values.watcher.replicas: not accepted, since there is one watcher"),
    ("operator: {replicas: 2}", "values.operator.replicas: not accepted, since there is one operator"),
    ("webhook: {enable: true}", "values.webhook.enable: unknown (did you mean webhook.enabled?)"),
    ("webhook: {failClosed: Fail}", "at '/webhook/failClosed': got string, want boolean"),
    ("qqq: 1", "values.qqq: unknown, and no known name is near: values.yaml of the chart has all"),
    ("rbac.scope: namespaces", 'values."rbac.scope": a name with a dot is not accepted, use a level for each part'),
    ("temporal: {tls.secretName: a}", 'values.temporal."tls.secretName": a name with a dot is not accepted'),
    # types and choices
    ("gateway: {replicas: three}", "at '/gateway/replicas': got string, want integer"),
    ("gateway: {replicas: 0}", "at '/gateway/replicas': minimum: got 0, want 1"),
    ("control: {replicas: 101}", "at '/control/replicas': maximum: got 101, want 100"),
    ("observe: 'yes'", "at '/observe': got string, want boolean"),
    ("rules: {set: nvdia}", "at '/rules/set': value must be one of 'plain', 'nvidia', 'ascend', 'own'"),
    ("senders: nobody", "at '/senders': value must be one of 'token', 'address', 'anybody'"),
    ("log: {level: debug}", "at '/log/level': value must be one of 'DEBUG', 'INFO', 'WARNING', 'ERROR'"),
    ("namespaces: training", "at '/namespaces': got string, want array"),
    ("storm: {nodes: 120}", "at '/storm/nodes': maximum: got 120, want 100"),
    ("networkPolicy: {extraPorts: [http]}", "at '/networkPolicy/extraPorts/0': got string, want integer"),
    ("control: {tolerations: [{keys: gpu}]}", "at '/control/tolerations/0': additional properties 'keys' not allowed"),
    ("control: {env: [{value: a}]}", "at '/control/env/0': missing property 'name'"),
    ("control: {env: [{name: 'A=B'}]}", "at '/control/env/0/name': 'A=B' does not match pattern"),
    ("control: {affinity: {nodeAfinity: {}}}", "at '/control/affinity': additional properties 'nodeAfinity' not allowed"),
    ("control: null", "missing property 'control'"),
    ("rbac: {scope: Cluster}", "at '/rbac/scope': value must be one of 'cluster', 'namespaces'"),
    ("image: rekindle:1", "at '/image': got string, want object"),
    # texts
    ("temporal: {address: temporal}", 'values.temporal.address: "temporal" is not accepted, use HOST:PORT, such as'),
    (
        "temporal: {address: 'https://temporal'}",
        'values.temporal.address: "https://temporal" is not accepted, use HOST:PORT, such as',
    ),
    ("image: {digest: 'sha256:12'}", 'values.image.digest: "sha256:12" is not accepted, use sha256: and 64 hexadecimal digits'),
    ("image: {repository: 'registry:5000/rekindle:1.0'}", 'values.image.repository: "registry:5000/rekindle:1.0" is not'),
    ("namespaces: [Training]", 'values.namespaces: "Training" is not accepted, use a name of lower-case letters, digits and -'),
    ("limits: {pause: 15 minutes}", 'values.limits.pause: "15 minutes" is not accepted, use seconds, or an ISO 8601 duration'),
    ("platforms: ['fd00:::/64']", 'values.platforms: "fd00:::/64" is not accepted, use a network such as 10.0.7.0/24'),
    ("platforms: ['1:2/128']", 'values.platforms: "1:2/128" is not accepted, use a network such as 10.0.7.0/24'),
    ("platforms: [10.0.7.0-9]", 'values.platforms: "10.0.7.0-9" is not accepted, use a network such as 10.0.7.0/24'),
    (
        "temporal: {ui: temporal.example.com}",
        'values.temporal.ui: "temporal.example.com" is not accepted, use an address such as',
    ),
    ("temporal: {trial: {storage: {size: 5 GB}}}", 'values.temporal.trial.storage.size: "5 GB" is not accepted, use a quantity'),
    # together
    (
        "temporal: {address: ''}",
        "values.temporal.address: missing, use HOST:PORT of your Temporal service, or temporal.trial.enabled=true",
    ),
    ("temporal: {trial: {enabled: true, image: a}}", "values.temporal.address: not accepted beside temporal.trial.enabled=true"),
    (
        "temporal: {address: '', trial: {enabled: true}}",
        "values.temporal.trial.image: missing, use an image whose command `temporal`",
    ),
    (
        "temporal: {address: '', namespace: a, trial: {enabled: true, image: a}}",
        "values.temporal.namespace: not accepted beside temporal.trial.enabled=true",
    ),
    (
        "temporal: {tls: {secretName: a}, apiKey: {secretName: b}}",
        "values.temporal.apiKey.secretName: not accepted beside temporal.tls.secretName, use one of them",
    ),
    ("rules: {set: own}", "values.rules.own: missing, use --set-file rules.own=rules.yaml, or another rules.set"),
    ("rules: {own: 'spec: {}'}", "values.rules.own: not read with rules.set=plain, use rules.set=own"),
    ("rules: {set: nvidia, reads: [ascend]}", "values.rules.reads: not read with rules.set=nvidia"),
    ("{takeOver: true, observe: true, service: {name: a}}", "values.takeOver: not accepted beside observe=true"),
    ("takeOver: true", "values.service.name: clusterd-grpc-svc is not accepted with takeOver=true"),
    ("rules: {set: own, own: 'spec: {}'}", "values.rules.own: no file of rules, use one with kind: Rules"),
    ("temporal: {ui: 'https://me:secret@temporal'}", "use an address such as https://temporal.example.com, without a password"),
    ("limits: {pause: PT0S}", 'values.limits.pause: "PT0S" is not accepted, use more than 0 s'),
    ("limits: {drainAgain: 0.5}", 'values.limits.drainAgain: "0.5" is not accepted, use 1 s or more'),
    ("limits: {approval: P3651D}", 'values.limits.approval: "P3651D" is not accepted, use at most 315360000 s, ten years'),
    ("limits: {nextOrder: PT16S}", "values.limits.nextOrder: must be longer than limits.settle, release and look together"),
    ("limits: {oldPodDeleted: PT1H}", "values.limits.oldPodDeleted: must be shorter than limits.migrationDelivered"),
    ("drainHeld: P0D", 'values.drainHeld: "P0D" is not accepted, use more than 0 s'),
    ("platforms: [10.0.7.1/24]", 'values.platforms: "10.0.7.1/24" is not accepted, use the first address of the network'),
    ("platforms: ['fd00::1/64']", 'values.platforms: "fd00::1/64" is not accepted, use the first address of the network'),
    ("webhook: {failClosed: true}", "values.webhook.failClosed: not read without webhook.enabled=true"),
    ("webhook: {certManager: {enabled: true}}", "values.webhook.certManager.enabled: not read without webhook.enabled"),
    (
        "gateway: {env: [{name: REKINDLE_GATEWAY_PORT, value: '1'}]}",
        "values.gateway.env: REKINDLE_GATEWAY_PORT is not accepted, since the chart sets it",
    ),
    ("image: {repository: ''}", 'values.image.repository: "" is not accepted, use a name without tag or digest'),
    ("service: {name: ''}", 'values.service.name: "" is not accepted, use a name of lower-case letters, digits and -'),
    (
        "{observe: true, webhook: {enabled: true, failClosed: true}}",
        "values.webhook.failClosed: not accepted beside observe=true",
    ),
    (
        "{namespaces: [mindx-dl, kube-system], webhook: {enabled: true}}",
        "values.webhook.enabled: not accepted with these namespaces, since no job of mindx-dl and kube-system is judged",
    ),
    ("control: {tolerations: [{value: a}]}", "values.control.tolerations[0].key: missing, use one, or operator: Exists"),
    (
        "webhook: {tolerations: [{operator: Exists}, {key: a, operator: Exists, value: b}]}",
        "values.webhook.tolerations[1].value: not accepted with operator: Exists, use Equal",
    ),
    (
        "gateway: {tolerations: [{key: a, effect: NoSchedule, tolerationSeconds: 5}]}",
        "values.gateway.tolerations[0].tolerationSeconds: not accepted without effect: NoExecute",
    ),
    (
        "control: {env: [{name: A, value: a, valueFrom: {fieldRef: {fieldPath: metadata.name}}}]}",
        "values.control.env: A has value and valueFrom, use one of them",
    ),
    ("rbac: {scope: namespaces}", "values.namespaces: missing with rbac.scope=namespaces"),
    ("namespaces: [a, b, a]", "values.namespaces: a namespace is there twice, use each once"),
    (
        "control: {autoscaling: {enabled: true, minReplicas: 5, maxReplicas: 2}}",
        "values.control.autoscaling.maxReplicas: 2 is not accepted, use at least minReplicas, which is 5",
    ),
    (
        "control: {env: [{name: REKINDLE_OBSERVE, value: 'true'}]}",
        "values.control.env: REKINDLE_OBSERVE is not accepted, since the chart sets it",
    ),
)


@pytest.mark.parametrize(("written", "message"), BROKEN, ids=[written for written, _ in BROKEN])
def test_a_broken_file_is_refused_with_what_is_accepted(written: str, message: str) -> None:
    """The message names the value, and what to write in its place."""
    given = yaml.safe_load(written)
    address = {} if "address" in given.get("temporal", {}) else {"address": "temporal:7233"}
    values = {**given, "temporal": {**address, **given.get("temporal", {})}}
    with pytest.raises(HelmError) as refused:
        texts(values)
    assert message in str(refused.value)


BY_THE_SCHEMA = (
    ("networkPolicy: {apiServerPorts: []}", "at '/networkPolicy/apiServerPorts': minItems: got 0, want 1"),
    ("control: {resources: {limits: {memory: 1GB}}}", "at '/control/resources/limits/memory': '1GB' does not match pattern"),
    (
        "gateway: {resources: {limits: {memroy: 1Gi}}}",
        "at '/gateway/resources/limits': additional properties 'memroy' not allowed",
    ),
    ("jobKeys: {pytorchjob: job-name}", "at '/jobKeys': additional properties 'pytorchjob' not allowed"),
    ("limits: {pause: 0}", "at '/limits/pause': exclusiveMinimum: got 0, want 0"),
    ("drainHeld: -1", "at '/drainHeld': exclusiveMinimum: got -1, want 0"),
)
"""Values that the API server would refuse in the middle of an installation, or the processes at their start."""

BY_THE_CHART = (
    ("namespaces: ['']", 'values.namespaces: "" is not accepted'),
    ("image: {pullSecrets: ['']}", 'values.image.pullSecrets: "" is not accepted'),
    ("temporal: {address: 'temporal:07233'}", 'values.temporal.address: "temporal:07233" is not accepted'),
    ("platforms: [10.0.7.256/24]", 'values.platforms: "10.0.7.256/24" is not accepted'),
    ("accelerators: [a b]", 'values.accelerators: "a b" is not accepted'),
    ("rankKeys: [a b]", 'values.rankKeys: "a b" is not accepted'),
    ("jobKeys: {PyTorchJob: a b}", 'values.jobKeys: "a b" is not accepted'),
    ("limits: {pause: PT}", 'values.limits.pause: "PT" is not accepted'),
    (
        "tracing: {endpoint: 'http://me:secret@collector:4318'}",
        "use an address such as http://collector:4318, without a password",
    ),
    ("service: {name: rekindle-webhook}", "values.service.name: rekindle-webhook is not accepted, since another Service"),
    ("test: {image: '{{ .Values }}'}", 'values.test.image: "{{ .Values }}" is not accepted'),
    ("gateway: {env: [{name: POD_IP, value: a}]}", "values.gateway.env: POD_IP is not accepted, since the chart sets it"),
    ("control: {env: [{name: A, value: a}, {name: A, value: b}]}", "values.control.env: A is there twice"),
    ("control: {resources: {requests: {memory: 1025Mi}}}", "use at most the limit, which is 1Gi, or raise it too"),
    ("control: {autoscaling: {enabled: true}}", "values.control.autoscaling.enabled: not accepted beside temporal.trial"),
)
"""The same, told by the templates. The last one is about a trial, which all of them are given with."""


@pytest.mark.parametrize("broken", [BY_THE_SCHEMA, BY_THE_CHART], ids=["schema", "chart"])
def test_what_would_fail_later_is_refused(broken: Sequence[tuple[str, str]]) -> None:
    """Helm installs nothing by half, and no process starts with a setting that it refuses. One file has all of these problems."""
    values: Object = {"temporal": {"address": "", "trial": {"enabled": True, "image": "a"}}}
    for written, _ in broken:
        _merge(values, yaml.safe_load(written))
    with pytest.raises(HelmError) as refused:
        texts(values)
    assert [message for _, message in broken if message not in str(refused.value)] == []


def _merge(values: Object, more: Object) -> None:
    for name, value in more.items():
        if isinstance(value, dict):
            _merge(values.setdefault(name, {}), value)
        else:
            values[name] = value


def test_networks_with_other_first_addresses_are_refused_as_the_processes_refuse_them() -> None:
    """Networks of IPv6 have all 129 lengths, and addresses with few bits, groups and zeros."""
    chance = random.Random(31)
    addresses = [IPv6Address(sum(1 << chance.randrange(128) for _ in range(chance.randrange(4)))) for _ in range(258)]
    texts_of = (str, str.upper, lambda text: IPv6Address(text).exploded)
    networks = [f"{chance.choice(texts_of)(str(address))}/{number % 129}" for number, address in enumerate(addresses)]
    with pytest.raises(HelmError) as refused:
        texts({"temporal": {"address": "temporal:7233"}, "platforms": networks})
    found = {line.split('"')[1] for line in str(refused.value).splitlines() if line.startswith("values.platforms")}
    assert found == {network for network in networks if not _is_network(network)}
    assert 50 < len(found) < 240


def _is_network(text: str) -> bool:
    try:
        return IPv6Network(text).num_addresses > 0
    except ValueError:
        return False


def test_a_namespace_that_is_no_text_is_refused() -> None:
    """YAML reads a name of digits as a number, and `null` as nothing."""
    for namespace in ("2024", "null"):
        with pytest.raises(HelmError, match=f"namespace {namespace}: YAML does not read this name as a text"):
            texts(given(), namespace)
    assert texts(given(), "team-2024")


def test_all_problems_are_told_at_once() -> None:
    """Helm shows each problem on a line of its own."""
    with pytest.raises(HelmError) as refused:
        texts(yaml.safe_load("{gatway: {replicas: 3}, obsreve: true, rules: {set: own}, temporal: {address: nowhere}}"))
    lines = [line for line in str(refused.value).splitlines() if "values." in line]
    assert len([line for line in lines if line.startswith("values.")]) == 4, str(refused.value)


def test_a_chart_around_this_one_may_have_values_for_all() -> None:
    """`global` is the name that Helm gives to every chart below another one."""
    assert texts({"global": {"team": "a"}, "temporal": {"address": "temporal:7233"}})
