"""Certificates that the webhook makes for itself: an authority, and the certificate that it signs for the webhook's Service.

Both are replaced long before they end. A new authority is known to callers before it signs anything: it is added to those before
it, and signs the next certificate.
"""

from base64 import b64decode, b64encode
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, load_pem_private_key
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

AUTHORITY_LASTS, AUTHORITY_RENEWED = timedelta(days=365), timedelta(days=90)
"""Lifetime of an authority, and the rest of it from which the next one is made. A certificate lives shorter than this rest."""

CERTIFICATE_LASTS, CERTIFICATE_RENEWED = timedelta(days=30), timedelta(days=10)
"""Lifetime of a certificate, and the rest of it from which the next one is made."""

SKEW = timedelta(hours=1)
"""Time before now from which certificates are valid: clocks of other machines may be late."""

AUTHORITIES, AUTHORITY_KEY, CERTIFICATE, KEY = "ca.crt", "ca.key", "tls.crt", "tls.key"
"""Keys of the Secret."""


@dataclass(frozen=True)
class Certificates:
    """Certificates and keys in PEM. Empty: there are none yet."""

    authorities: bytes = b""
    """Authorities that callers trust, the newest first."""
    authority_key: bytes = b""
    """Key of the newest authority."""
    certificate: bytes = b""
    key: bytes = b""

    @property
    def data(self) -> dict[str, str]:
        """Data of the Secret."""
        parts = (self.authorities, self.authority_key, self.certificate, self.key)
        return {name: b64encode(part).decode() for name, part in zip(_NAMES, parts, strict=True)}


_NAMES = (AUTHORITIES, AUTHORITY_KEY, CERTIFICATE, KEY)


def certificates_in(data: Mapping[str, str]) -> Certificates:
    """Returns the certificates of a Secret. What is no base64 counts as missing."""
    return Certificates(*(_decoded(data.get(name, "")) for name in _NAMES))


def _decoded(value: str) -> bytes:
    try:
        return b64decode(value, validate=True)
    except ValueError:
        return b""


def renewed(found: Certificates, service: str, now: datetime) -> Certificates:
    """Returns the certificates to use from now on: those that were found, if nothing is due.

    Args:
        service: name by which callers know the webhook.
    """
    authority = _authority(found, now)
    if authority is None:
        return _signed(_with_authority(found, now), service, now)  # replicas serve with what the ones before have signed
    ends = _ends(found, service, now)
    if ends is None:
        return _signed(found, service, now)
    if authority.not_valid_after_utc - now < AUTHORITY_RENEWED:
        return _with_authority(found, now)
    return _signed(found, service, now) if ends - now < CERTIFICATE_RENEWED else found


def _authority(found: Certificates, now: datetime) -> x509.Certificate | None:
    """Returns the newest authority. None: it cannot sign."""
    for newest in _read(found.authorities)[:1]:
        is_ours = _belongs(found.authority_key, newest) and isinstance(newest.public_key(), ec.EllipticCurvePublicKey)
        if is_ours and _is_valid(newest, now):
            return newest
    return None


def _ends(found: Certificates, service: str, now: datetime) -> datetime | None:
    """Returns the end of the certificate. None: it cannot be used."""
    certificates = _read(found.certificate)
    if not certificates or not _belongs(found.key, certificates[0]) or not _is_valid(certificates[0], now):
        return None
    is_trusted = any(_is_issued_by(certificates[0], one) and _is_valid(one, now) for one in _read(found.authorities))
    return certificates[0].not_valid_after_utc if is_trusted and service in _names_of(certificates[0]) else None


def problem_of(certificate: bytes, authorities: bytes, service: str, now: datetime) -> str:
    """Returns why callers refuse a certificate; empty: they trust it.

    Args:
        certificate: the chain, in PEM.
        authorities: those that the callers trust, in PEM.
        service: name by which they call the webhook.
    """
    chain, trusted = _read(certificate), _read(authorities)
    if not chain:
        return "there is no certificate yet"
    if not _is_valid(chain[0], now):
        return f"the certificate is valid from {chain[0].not_valid_before_utc} to {chain[0].not_valid_after_utc} only"
    if service not in _names_of(chain[0]):
        return f"the certificate is not for {service}"
    if not trusted:
        return "the API server trusts no authority, since caBundle is empty"
    if not any(_is_issued_by(one, authority) and _is_valid(authority, now) for one in chain for authority in trusted):
        return "the API server does not trust the authority of the certificate: caBundle has another one"
    return ""


def end_of(certificate: bytes) -> datetime:
    """Returns the end of a certificate that can be read."""
    return _read(certificate)[0].not_valid_after_utc


def _names_of(certificate: x509.Certificate) -> list[str]:
    try:
        return certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value.get_values_for_type(x509.DNSName)
    except (x509.ExtensionNotFound, ValueError):
        return []


def _read(content: bytes) -> list[x509.Certificate]:
    try:
        return x509.load_pem_x509_certificates(content)
    except ValueError:
        return []


def _belongs(key: bytes, certificate: x509.Certificate) -> bool:
    try:
        return load_pem_private_key(key, None).public_key() == certificate.public_key()
    except (TypeError, UnsupportedAlgorithm, ValueError):
        return False


def _is_issued_by(certificate: x509.Certificate, authority: x509.Certificate) -> bool:
    try:
        certificate.verify_directly_issued_by(authority)
    except (InvalidSignature, TypeError, ValueError):
        return False
    return True


def _is_valid(certificate: x509.Certificate, now: datetime) -> bool:
    return certificate.not_valid_before_utc <= now < certificate.not_valid_after_utc


# ---- new ones


def _with_authority(found: Certificates, now: datetime) -> Certificates:
    """Returns the certificates with a new authority before the others, as far as these have not ended. One that is not valid yet
    may be that of a replica whose clock is ahead."""
    key = ec.generate_private_key(ec.SECP256R1())
    named = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "rekindle-webhook")])
    usage = x509.KeyUsage(
        key_cert_sign=True,
        crl_sign=True,
        digital_signature=False,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )
    authority = (
        _builder(named, key.public_key(), now, now + AUTHORITY_LASTS)
        .issuer_name(named)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(usage, critical=True)
        .sign(key, SHA256())
    )
    kept = [authority, *(one for one in _read(found.authorities) if now < one.not_valid_after_utc)]
    return replace(found, authorities=b"".join(map(_written, kept)), authority_key=_private(key))


def _signed(found: Certificates, service: str, now: datetime) -> Certificates:
    """Returns the certificates with a new one for the Service, signed by the newest authority."""
    authority, signer = _read(found.authorities)[0], load_pem_private_key(found.authority_key, None)
    assert isinstance(signer, ec.EllipticCurvePrivateKey), "a key of ours"
    key = ec.generate_private_key(ec.SECP256R1())
    ends = min(now + CERTIFICATE_LASTS, authority.not_valid_after_utc)
    certificate = (
        _builder(x509.Name([]), key.public_key(), now, ends)
        .issuer_name(authority.subject)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(service)]), critical=True)  # there is no subject
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(signer.public_key()), critical=False)
        .sign(signer, SHA256())
    )
    return replace(found, certificate=_written(certificate), key=_private(key))


def _builder(subject: x509.Name, key: ec.EllipticCurvePublicKey, begins: datetime, ends: datetime) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(begins - SKEW)
        .not_valid_after(ends)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key), critical=False)
    )


def _written(certificate: x509.Certificate) -> bytes:
    return certificate.public_bytes(Encoding.PEM)


def _private(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
