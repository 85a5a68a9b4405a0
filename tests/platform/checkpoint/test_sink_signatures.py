"""The in-memory S3 server takes only what is signed by a key it knows: by boto3, by our own transport, in headers and in URLs."""

import http.client
import time
import urllib.parse

import pytest

from samite.checkpoint.store import StoreOptions, open_store
from samite.checkpoint.store.s3 import S3Options, S3Store
from samite.checkpoint.store.sink import Sink
from samite.errors import NotAllowedError

KEY, SECRET = "AKIDEXAMPLE", "wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY"


@pytest.fixture
def sink():
    with Sink(keys={KEY: SECRET}) as server:
        yield server


def store(sink: Sink, *, key: str = KEY, secret: str = SECRET, zero_copy: bool = True) -> S3Store:
    options = S3Options(endpoint=sink.endpoint, region="eu-central-1", access_key=key, secret_key=secret, zero_copy=zero_copy)
    return S3Store("bucket", "run/with space+plus%2F", options, part_bytes=5 * 1024 * 1024)


def client(sink: Sink, *, key: str = KEY, secret: str = SECRET, signed_payload: bool = True, **settings):
    import boto3
    from botocore.config import Config

    config = Config(
        s3={"addressing_style": "path", "payload_signing_enabled": signed_payload}, retries={"total_max_attempts": 1}, **settings
    )
    return boto3.client(
        "s3", endpoint_url=sink.endpoint, region_name="r", aws_access_key_id=key, aws_secret_access_key=secret, config=config
    )


@pytest.mark.parametrize("zero_copy", [True, False])
def test_everything_a_store_does_is_signed_as_the_protocol_says(sink, zero_copy: bool):
    ours = store(sink, zero_copy=zero_copy)
    body = bytes(range(256)) * 50_000
    ours.put("one~key/with=odd&chars", b"small")
    ours.put("large", body)
    target = bytearray(1000)
    ours.read_into("large", 777, memoryview(target))
    assert bytes(target) == body[777:1777]
    assert ours.put_if_absent("once", b"1")
    assert not ours.put_if_absent("once", b"2")
    assert ours.compare_and_swap("once", b"3", ours.head("once").etag)
    assert list(ours.children("one~key/")) == ["with=odd&chars"]
    assert [info.key for info in ours.list("")] == ["large", "once", "one~key/with=odd&chars"]
    ours.delete(["large"])
    assert ours.head("large") is None
    assert ours.sweep(0.0) == 0


@pytest.mark.parametrize("zero_copy", [True, False])
@pytest.mark.parametrize(
    "act", [lambda one: one.get("k"), lambda one: one.put("k", b"x"), lambda one: list(one.list("")), lambda one: one.head("k")]
)
def test_a_wrong_secret_is_refused_whatever_is_asked_and_nothing_is_stored(sink, act, zero_copy: bool):
    with pytest.raises(NotAllowedError) as refused:
        act(store(sink, secret="wrong", zero_copy=zero_copy))
    assert "SignatureDoesNotMatch" in str(refused.value) or "403" in str(refused.value)
    assert sink.objects.stored == {}


def test_an_unknown_key_is_told_apart_from_a_wrong_secret(sink):
    with pytest.raises(NotAllowedError, match="InvalidAccessKeyId"):
        store(sink, key="AKIDSOMEBODY").put("k", b"x")
    with pytest.raises(NotAllowedError, match="SignatureDoesNotMatch"):
        store(sink, secret=SECRET + "x").put("k", b"x")


@pytest.mark.parametrize("ahead_s", [-1000.0, 1000.0])
def test_a_clock_that_is_wrong_is_named(sink, ahead_s: float):
    sink.clock = lambda: time.time() + ahead_s
    with pytest.raises(NotAllowedError, match=r"RequestTimeTooSkewed.*clock"):
        store(sink).put("k", b"x")
    sink.clock = lambda: time.time() + ahead_s * 0.8
    store(sink).put("k", b"x")


@pytest.mark.parametrize("signed_payload", [True, False])
def test_boto3_as_it_is_installed_is_understood(sink, signed_payload: bool):
    boto = client(sink, signed_payload=signed_payload)
    boto.put_object(Bucket="bucket", Key="a/b c", Body=b"content")
    assert boto.get_object(Bucket="bucket", Key="a/b c")["Body"].read() == b"content"
    assert [one["Key"] for one in boto.list_objects_v2(Bucket="bucket", Prefix="a/")["Contents"]] == ["a/b c"]
    with pytest.raises(boto.exceptions.ClientError, match="SignatureDoesNotMatch"):
        client(sink, secret="other", signed_payload=signed_payload).put_object(Bucket="bucket", Key="a", Body=b"x")


def send(sink: Sink, method: str, url: str, body: bytes = b"", headers=None) -> tuple[int, str]:
    parts = urllib.parse.urlsplit(url)
    connection = http.client.HTTPConnection(parts.hostname, parts.port, timeout=5)
    connection.request(method, f"{parts.path}?{parts.query}", body=body, headers=headers or {})
    answer = connection.getresponse()
    text = answer.read().decode()
    connection.close()
    return answer.status, text


def test_a_presigned_url_works_until_it_expires_and_only_as_it_was_signed(sink):
    boto = client(sink, signature_version="s3v4")
    url = boto.generate_presigned_url("put_object", Params={"Bucket": "bucket", "Key": "k"}, ExpiresIn=60)
    assert send(sink, "PUT", url, b"hello")[0] == 200
    assert sink.objects.stored["bucket", "k"].size == 5
    status, text = send(sink, "PUT", url.replace("/bucket/k?", "/bucket/other?"), b"x")
    assert (status, "SignatureDoesNotMatch" in text) == (403, True)
    status, text = send(sink, "GET", url)
    assert (status, "SignatureDoesNotMatch" in text) == (403, True)
    sink.clock = lambda: time.time() + 61
    status, text = send(sink, "PUT", url, b"late")
    assert (status, "expired" in text) == (403, True)


def test_a_request_without_a_signature_is_refused_and_a_body_that_was_changed_too(sink):
    assert send(sink, "GET", f"{sink.endpoint}/bucket/k?")[0] == 403
    from botocore.auth import S3SigV4Auth
    from botocore.awsrequest import AWSRequest
    from botocore.credentials import Credentials

    request = AWSRequest(method="PUT", url=f"{sink.endpoint}/bucket/k", data=b"true content")
    request.context["payload_signing_enabled"] = True
    S3SigV4Auth(Credentials(KEY, SECRET), "s3", "r").add_auth(request)
    status, text = send(sink, "PUT", f"{sink.endpoint}/bucket/k?", b"other bytes!", dict(request.headers))
    assert (status, "XAmzContentSHA256Mismatch" in text) == (400, True)
    assert send(sink, "PUT", f"{sink.endpoint}/bucket/k?", b"true content", dict(request.headers))[0] == 200
    status, text = send(sink, "PUT", f"{sink.endpoint}/bucket/k?", b"true content", {**dict(request.headers), "x-amz-meta-added": "1"})
    assert (status, "x-amz-meta-added" in text) == (403, True)


def test_a_sink_without_keys_takes_requests_of_anybody():
    with Sink() as server:
        anybody = open_store("s3://bucket/run", StoreOptions(endpoint=server.endpoint, access_key="any", secret_key="any"))
        anybody.put("k", b"x")
        assert anybody.get("k") == b"x"
