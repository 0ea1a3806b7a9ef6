"""Certificates that the webhook makes are renewed before they end, and callers trust each of them before it is used."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from cryptography import x509
from cryptography.x509 import DNSName
from cryptography.x509.verification import PolicyBuilder, Store, VerificationError

from tests.support.admission import SERVICE
from workers.webhook.own_certificates import (
    AUTHORITY_LASTS,
    CERTIFICATE_LASTS,
    SKEW,
    Certificates,
    certificates_in,
    end_of,
    problem_of,
    renewed,
)

NOW = datetime(2026, 11, 29, 12, tzinfo=UTC)
EMPTY = Certificates()


def is_trusted(certificate: bytes, authorities: bytes, now: datetime, service: str = SERVICE) -> bool:
    """Returns whether a caller that knows these authorities accepts the certificate."""
    store = Store(x509.load_pem_x509_certificates(authorities))
    verifier = PolicyBuilder().store(store).time(now.replace(tzinfo=None)).build_server_verifier(DNSName(service))
    try:
        verifier.verify(x509.load_pem_x509_certificate(certificate), [])
    except VerificationError:
        return False
    return True


def test_first_certificates_are_trusted_by_their_service_s_name() -> None:
    """A second look a day later changes nothing."""
    first = renewed(EMPTY, SERVICE, NOW)
    assert is_trusted(first.certificate, first.authorities, NOW)
    assert not is_trusted(first.certificate, first.authorities, NOW, "other.mindx-dl.svc")
    assert renewed(first, SERVICE, NOW + timedelta(days=1)) is first
    assert certificates_in(first.data) == first


def test_certificates_are_renewed_for_years_without_a_gap() -> None:
    """A caller that learnt of the authorities a round ago trusts the certificate, also that of a replica that is a round late."""
    now, round_ = NOW, timedelta(hours=7)
    before = renewed(EMPTY, SERVICE, now)
    used, authorities = {before.certificate}, {before.authorities}
    while now < NOW + 3 * AUTHORITY_LASTS:
        now += round_
        found = renewed(before, SERVICE, now)
        assert is_trusted(found.certificate, before.authorities, now)
        assert is_trusted(before.certificate, found.authorities, now)
        assert len(x509.load_pem_x509_certificates(found.authorities)) <= 2
        used.add(found.certificate)
        authorities.add(found.authorities)
        before = found
    assert len(used) > 3 * AUTHORITY_LASTS / CERTIFICATE_LASTS
    assert len(authorities) > 3


@pytest.mark.parametrize("away", [timedelta(days=25), timedelta(days=31), timedelta(days=300), timedelta(days=400)], ids=str)
def test_certificates_that_nobody_renewed_are_replaced(away: timedelta) -> None:
    """No replica ran for a while, in two cases for longer than the authority lasts."""
    first, now = renewed(EMPTY, SERVICE, NOW), NOW + away
    found = renewed(first, SERVICE, now)
    assert found != first
    assert is_trusted(found.certificate, found.authorities, now)


@pytest.mark.parametrize("part", ["authorities", "authority_key", "certificate", "key"])
@pytest.mark.parametrize("damage", ["missing", "garbage", "another one's"])
def test_a_damaged_secret_is_mended(part: str, damage: str) -> None:
    """A part that is wrong, or belongs to something else, is replaced."""
    first, another = renewed(EMPTY, SERVICE, NOW), renewed(EMPTY, SERVICE, NOW)
    damaged = {"missing": b"", "garbage": b"-----BEGIN\xff", "another one's": getattr(another, part)}
    found = renewed(replace(first, **{part: damaged[damage]}), SERVICE, NOW)
    assert is_trusted(found.certificate, found.authorities, NOW)
    assert renewed(found, SERVICE, NOW) is found


def test_a_replica_whose_clock_is_late_leaves_others_their_certificate() -> None:
    """An authority was added that is not valid by its clock. What is served meanwhile is signed by the one before."""
    before, now = renewed(EMPTY, SERVICE, NOW), NOW
    served = added = before
    while added.authority_key == before.authority_key:
        now += timedelta(days=1)
        served, added = added, renewed(added, SERVICE, now)
    late = renewed(added, SERVICE, now - 2 * SKEW)
    assert late != added
    assert is_trusted(served.certificate, late.authorities, now)
    assert is_trusted(late.certificate, late.authorities, now)
    assert renewed(late, SERVICE, now) is late


def test_another_name_needs_another_certificate() -> None:
    """The installation has moved to another namespace, with its Secret."""
    first, moved = renewed(EMPTY, SERVICE, NOW), "rekindle-webhook.elsewhere.svc"
    found = renewed(first, moved, NOW)
    assert found.authorities == first.authorities
    assert is_trusted(found.certificate, found.authorities, NOW, moved)


def test_what_is_no_base64_counts_as_missing() -> None:
    """Somebody has edited the Secret."""
    assert certificates_in({"ca.crt": "%%%", "tls.crt": "eA=="}) == Certificates(certificate=b"x")


def test_a_certificate_that_callers_refuse_says_why() -> None:
    """Each reason is one that a person can act on."""
    first, another = renewed(EMPTY, SERVICE, NOW), renewed(EMPTY, SERVICE, NOW)

    def problem(certificate: bytes, trusted: bytes, service: str = SERVICE, now: datetime = NOW) -> str:
        return problem_of(certificate, trusted, service, now)

    assert problem(first.certificate, first.authorities) == ""
    assert problem(b"garbage", first.authorities) == "there is no certificate yet"
    assert "is not for other.mindx-dl.svc" in problem(first.certificate, first.authorities, "other.mindx-dl.svc")
    assert "caBundle is empty" in problem(first.certificate, b"")
    assert "caBundle has another one" in problem(first.certificate, another.authorities)
    later = NOW + 2 * CERTIFICATE_LASTS
    assert f"to {end_of(first.certificate)} only" in problem(first.certificate, first.authorities, now=later)
