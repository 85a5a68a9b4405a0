"""S3 in particular: what an answer means, one canonical URI, refusals that name the permission (S7, S23)."""

import secrets

import pytest
from botocore.exceptions import ClientError, EndpointConnectionError, NoCredentialsError, ReadTimeoutError

from samite.checkpoint import Catalog
from samite.checkpoint.store import MissingKeyError, StorageFullError, StoreOptions, open_store
from samite.checkpoint.store.probe import probe
from samite.checkpoint.store.s3 import S3Store
from samite.checkpoint.store.s3_client import check_endpoint
from samite.checkpoint.store.s3_errors import translate
from samite.errors import NotAllowedError, NotFoundError, SamiteError, TemporaryError, UnreachableError, UsageError


@pytest.fixture
def options(moto_endpoint) -> StoreOptions:
    return StoreOptions(endpoint=moto_endpoint, access_key="test", secret_key="test", region="us-east-1")


@pytest.fixture
def bucket(options) -> str:
    name = f"b-{secrets.token_hex(4)}"
    open_store(f"s3://{name}", options).client.create_bucket(Bucket=name)
    return name


def test_one_place_has_one_uri_however_many_slashes_are_typed(bucket, options):
    for text, wanted in (
        ("", ""),
        ("/", ""),
        ("/run", "/run"),
        ("/run//", "/run"),
        ("//run/", "/run"),
        ("/a//b", "/a/b"),
        ("/r n+%2F", "/r n+%2F"),
    ):
        store = open_store(f"s3://{bucket}{text}", options)
        assert store.uri == f"s3://{bucket}{wanted}"
        store.put("key", b"x")
        assert store.get("key") == b"x"
    keys = [info["Key"] for info in store.client.list_objects_v2(Bucket=bucket)["Contents"]]
    assert sorted(keys) == ["a/b/key", "key", "r n+%2F/key", "run/key"]


def test_a_run_never_sees_its_neighbour_whose_name_begins_the_same(bucket, options):
    open_store(f"s3://{bucket}/run2", options).put("ckpt/x", b"x")
    store = open_store(f"s3://{bucket}/run", options)
    assert list(store.list("")) == list(store.children("")) == []
    store.put("ckpt/y", b"y")
    assert [info.key for info in store.list("")] == ["ckpt/y"]


@pytest.mark.parametrize(
    ("endpoint", "wanted"),
    [
        ("https://s3.example.com/bucket", "only scheme, host and port"),
        ("https://bucket.s3.example.com", r"wanted https://s3\.example\.com"),
        ("https://bucket", "already names bucket"),
        ("s3.example.com", "wanted a URL"),
        ("ftp://s3.example.com", "wanted a URL"),
        ("http://s3.example.com", "plain http to another machine"),
        ("https://key:secret@s3.example.com", "credentials do not belong"),
    ],
)
def test_an_endpoint_that_does_not_fit_is_refused(endpoint: str, wanted: str):
    with pytest.raises(UsageError, match=wanted):
        open_store("s3://bucket/run", StoreOptions(endpoint=endpoint))


@pytest.mark.parametrize("endpoint", ["http://127.0.0.1:8333", "http://[::1]:9000/", "http://localhost:1", "https://s3.example.com"])
def test_an_endpoint_that_fits_loses_only_its_last_slash(endpoint: str):
    assert check_endpoint(endpoint, "bucket", insecure=False) == endpoint.rstrip("/")


def test_plain_http_is_allowed_when_it_is_asked_for():
    assert check_endpoint("http://storage:9000", "b", insecure=True) == "http://storage:9000"


@pytest.mark.parametrize("uri", ["s3://key:secret@bucket/x", "s3://bucket:9000/x", "s3:///x", "s3://bucket/x?versionId=1"])
def test_a_uri_with_foreign_parts_is_refused(uri: str):
    with pytest.raises(UsageError, match=r"wanted s3://bucket/prefix|a query"):
        open_store(uri)


def test_an_endpoint_for_something_that_is_not_s3_is_refused():
    with pytest.raises(UsageError, match="for s3:// only"):
        open_store("/a/b", StoreOptions(endpoint="https://s3.example.com"))


@pytest.mark.parametrize("call", ["list", "children", "get"])
def test_a_bucket_that_is_not_there_is_not_an_empty_one(options, call):
    store = open_store("s3://no-such-bucket-here/run", options)
    with pytest.raises(NotFoundError, match="bucket 'no-such-bucket-here' does not exist") as found:
        list(getattr(store, call)("" if call != "get" else "key"))
    assert not isinstance(found.value, MissingKeyError)
    with pytest.raises(NotFoundError):
        Catalog(store).newest_committed()


def answer(status: int, code: str = "", message: str = "") -> ClientError:
    return ClientError({"Error": {"Code": code, "Message": message}, "ResponseMetadata": {"HTTPStatusCode": status}}, "GetObject")


@pytest.mark.parametrize(
    ("error", "kind", "said"),
    [
        (answer(403, "AccessDenied"), NotAllowedError, "need s3:GetObject. This does not say that nothing is there"),
        (answer(403, ""), NotAllowedError, "refused"),
        (answer(401, "Unauthorized"), NotAllowedError, "refused"),
        (answer(400, "ExpiredToken"), NotAllowedError, "expired"),
        (answer(403, "InvalidAccessKeyId"), NotAllowedError, "does not accept these credentials"),
        (answer(403, "SignatureDoesNotMatch"), NotAllowedError, "does not accept these credentials"),
        (answer(404, "NoSuchKey"), MissingKeyError, "no such object"),
        (answer(404, "NoSuchBucket"), NotFoundError, "does not exist"),
        (answer(301, "PermanentRedirect"), NotFoundError, "another region"),
        (answer(503, "SlowDown"), TemporaryError, "503 SlowDown"),
        (answer(500, "InternalError"), TemporaryError, "500"),
        (answer(429, "TooManyRequests"), TemporaryError, "429"),
        (answer(400, "RequestTimeout"), TemporaryError, "RequestTimeout"),
        (answer(400, "BadDigest"), TemporaryError, "BadDigest"),
        (answer(507, "InsufficientStorage"), StorageFullError, "storage is full"),
        (answer(403, "QuotaExceeded"), StorageFullError, "storage is full"),
        (answer(400, "InvalidRequest", "odd"), SamiteError, "odd"),
        (NoCredentialsError(), NotAllowedError, "no usable credentials"),
        (EndpointConnectionError(endpoint_url="http://x"), UnreachableError, "did not answer"),
        (ReadTimeoutError(endpoint_url="http://x"), UnreachableError, "did not answer"),
    ],
)
def test_every_answer_of_storage_means_one_thing(error, kind, said):
    found = translate(error, where="s3://b/k", bucket="b", permission="s3:GetObject")
    assert type(found) is kind
    assert said in str(found)
    assert "s3://b/k" in str(found)


def test_a_large_object_goes_in_equal_parts_and_comes_back_whole(bucket, options):
    base = open_store(f"s3://{bucket}/large", options)
    store = S3Store(bucket, "large", base._options, part_bytes=5 * 1024 * 1024)
    for size in (5 * 1024 * 1024, 5 * 1024 * 1024 + 1, 12 * 1024 * 1024 + 777):
        content = secrets.token_bytes(size)
        store.put("object", content)
        assert store.get("object") == content
    assert store.client.list_multipart_uploads(Bucket=bucket).get("Uploads", []) == []


def test_an_upload_that_fails_leaves_no_parts_behind_and_old_ones_are_swept(bucket, options):
    base = open_store(f"s3://{bucket}/large", options)
    store = S3Store(bucket, "large", base._options, part_bytes=5 * 1024 * 1024)

    def fail(**_arguments):
        raise ConnectionResetError("the wire was cut")

    store.client.meta.events.register("before-call.s3.CompleteMultipartUpload", fail)
    with pytest.raises(ConnectionResetError):
        store.put("object", secrets.token_bytes(6 * 1024 * 1024))
    assert store.client.list_multipart_uploads(Bucket=bucket).get("Uploads", []) == []
    store.client.create_multipart_upload(Bucket=bucket, Key="large/orphan")
    store.client.create_multipart_upload(Bucket=bucket, Key="other/not-ours")
    assert store.sweep(older_than_s=0) == 1
    assert [one["Key"] for one in store.client.list_multipart_uploads(Bucket=bucket)["Uploads"]] == ["other/not-ours"]


def test_a_port_where_nobody_listens_is_unreachable_and_not_empty():
    store = open_store("s3://b/run", StoreOptions(endpoint="http://127.0.0.1:9", access_key="a", secret_key="b", timeout_s=1))
    with pytest.raises(UnreachableError, match="did not answer"):
        Catalog(store).newest_committed()


def test_the_probe_works_in_the_real_prefix_and_reports_versioning(bucket, options):
    store = open_store(f"s3://{bucket}/run", options)
    store.client.put_bucket_versioning(Bucket=bucket, VersioningConfiguration={"Status": "Enabled"})
    report = probe(store)
    assert report.fit
    assert "older" not in report.notes
    assert "old versions expire" in report.notes[0]
    assert all(version["Key"].startswith("run/probe/") for version in store.client.list_object_versions(Bucket=bucket)["Versions"])


def test_no_secret_is_in_any_error(moto_endpoint):
    options = StoreOptions(endpoint=moto_endpoint, access_key="AKIDEXAMPLE", secret_key="wJalrXUtnFEMI", region="us-east-1")
    with pytest.raises(NotFoundError) as found:
        open_store("s3://nowhere-at-all/run", options).get("k")
    assert "wJalrXUtnFEMI" not in repr(found.value)
    assert "wJalrXUtnFEMI" not in repr(options) + repr(open_store("s3://b/run", options)._options)
