import pytest

from lsp_server.context.secret import is_secret


@pytest.mark.parametrize(
    "path",
    [
        "file:///home/me/project/.env",
        ".env.production",
        "a/.ENV",
        "keys/server.pem",
        "id_ed25519",
        "C:\\Users\\me\\.ssh\\config",
        "file:///home/me/.aws/config",
        "credentials.json",
        "secrets.yaml",
        "infra/prod.tfvars",
        "infra/prod.auto.tfvars.json",
        "gcp/service-account-key.json",
        "/home/me/.docker/config.json",
        ".vault-token",
    ],
)
def test_secret(path: str) -> None:
    assert is_secret(path)


@pytest.mark.parametrize(
    "path", ["file:///a/environment.py", ".env.example", "credentials.py", "secrets.py", "key.ts", "monkey", "pem.go"]
)
def test_not_secret(path: str) -> None:
    assert not is_secret(path)
