"""Broken values files: each is refused before anything is installed, with a message that names the value and what is accepted."""

import pytest
import yaml
from helm_python import HelmError

from tests.support.charts import texts

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
    ("image: {repository: 'rekindle:1.0@x'}", 'values.image.repository: "rekindle:1.0@x" is not accepted'),
    ("namespaces: [Training]", 'values.namespaces: "Training" is not accepted, use a name of lower-case letters, digits and -'),
    ("limits: {pause: 15 minutes}", 'values.limits.pause: "15 minutes" is not accepted, use seconds, or an ISO 8601 duration'),
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


def test_all_problems_are_told_at_once() -> None:
    """Helm shows each problem on a line of its own."""
    with pytest.raises(HelmError) as refused:
        texts(yaml.safe_load("{gatway: {replicas: 3}, obsreve: true, rules: {set: own}, temporal: {address: nowhere}}"))
    lines = [line for line in str(refused.value).splitlines() if "values." in line]
    assert len([line for line in lines if line.startswith("values.")]) == 4, str(refused.value)


def test_a_chart_around_this_one_may_have_values_for_all() -> None:
    """`global` is the name that Helm gives to every chart below another one."""
    assert texts({"global": {"team": "a"}, "temporal": {"address": "temporal:7233"}})
