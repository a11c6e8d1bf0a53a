"""A certificate for receivers."""

import pytest

from tests.webhooks.receivers import Certificate, make_certificate


@pytest.fixture(scope="session")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Certificate:
    return make_certificate(tmp_path_factory.mktemp("tls"))


@pytest.fixture
def trusted(certificate: Certificate, monkeypatch: pytest.MonkeyPatch) -> Certificate:
    """A certificate that this process trusts, as OpenSSL reads it from the environment."""
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate.cert))
    return certificate
