"""Sealed documents, indexes and manifests: round trips, damage at every byte, versions, size."""

import random
import secrets

import pytest

from samite.checkpoint.checksum import BLOCK_BYTES, block_checksums, combine_blocks, combine_crc64, crc64, from_header, to_header
from samite.checkpoint.envelope import UnknownFormatError, seal, unseal
from samite.checkpoint.index import Chunk, DataObject, RankIndex, TensorMeta, Witness
from samite.checkpoint.layout import CheckpointId, SessionId, align
from samite.checkpoint.manifest import Manifest, RankRecord
from samite.errors import CheckpointDamagedError


def some_manifest() -> Manifest:
    ranks = tuple(RankRecord(rank=r, index_bytes=100, index_crc64=r, data_bytes=5, num_objects=1, num_chunks=2) for r in range(3))
    return Manifest(
        checkpoint_id="00000007-2-0123abcd",
        step=7,
        session=SessionId(2, 1),
        run_uid="run",
        ranks=ranks,
        num_tensors=4,
        created_unix_s=12.5,
        extra={"cursor": {"rows": [1, 2]}, "stage": "one", "name": "ü"},
        final=True,
        writer="test",
    )


def some_index(num_chunks: int = 5, rank: int = 3) -> RankIndex:
    random.seed(rank)
    tensors = tuple(TensorMeta(f"model.layers.{n}.mlp.experts.w{n % 3}", "bfloat16", (1024, 64)) for n in range(num_chunks))
    chunks = tuple(
        Chunk(n, ((rank * 16, 16), (0, 64)), 0, 2048, 0, n * 2048, checksum := random.getrandbits(64), (checksum,))
        for n in range(num_chunks)
    )
    return RankIndex(
        checkpoint_id="00000007-2-0123abcd",
        rank=rank,
        tensors=tensors,
        objects=(DataObject("data/00003-0.bin", 2048 * num_chunks, random.getrandbits(64)),),
        chunks=chunks,
        witnesses=(Witness(0, ((0, 1024), (0, 64)), 2**64 - 1),),
        aliases={"tied": "model.layers.0.mlp.experts.w0"},
    )


def test_the_checksum_is_crc64_nvme():
    assert crc64(b"123456789") == 0xAE8B14860A799888
    assert crc64(b"") == 0
    assert from_header(to_header(0xAE8B14860A799888)) == 0xAE8B14860A799888


def test_block_checksums_combine_to_that_of_the_whole():
    data = memoryview(secrets.token_bytes(2 * BLOCK_BYTES + 17))
    assert combine_blocks(block_checksums(data), len(data)) == crc64(data)
    assert combine_crc64(crc64(data[:5]), crc64(data[5:]), len(data) - 5) == crc64(data)


@pytest.mark.parametrize("make", [some_manifest, some_index])
def test_documents_come_back_as_they_were(make):
    document = make().to_bytes()
    assert type(make()).from_bytes(document, name="x") == make()


@pytest.mark.parametrize("make", [some_manifest, some_index])
def test_every_flipped_bit_and_every_cut_is_noticed(make):
    document, kind = make().to_bytes(), type(make())
    for position in range(len(document)):
        for bad in (
            document[:position],
            document[:position] + bytes([document[position] ^ (1 << position % 8)]) + document[position + 1 :],
        ):
            with pytest.raises((CheckpointDamagedError, UnknownFormatError), match="the key"):
                kind.from_bytes(bad, name="the key")


def test_one_kind_of_document_is_not_taken_for_another():
    with pytest.raises(CheckpointDamagedError, match="wanted a MANIFEST, found a INDEX"):
        Manifest.from_bytes(some_index().to_bytes(), name="x")


def test_a_newer_format_is_named_and_not_called_damaged():
    with pytest.raises(UnknownFormatError, match="written in format 2, this Samite reads up to 1"):
        unseal("MANIFEST", seal("MANIFEST", b"{}", version=2), name="x")


def test_columns_and_fields_of_a_later_writer_are_ignored():
    body = unseal("MANIFEST", some_manifest().to_bytes(), name="x")
    assert Manifest.from_bytes(seal("MANIFEST", body[:-1] + b',"later":1}'), name="x") == some_manifest()


def test_an_index_takes_less_than_32_bytes_a_chunk():
    assert len(some_index(500).to_bytes()) / 500 <= 32


def test_ids_and_alignment():
    assert str(CheckpointId(step=41, epoch=3, attempt="0123abcd")) == "00000041-3-0123abcd"
    assert CheckpointId.parse("123456789012-3-0123abcd").step == 123456789012
    for text in ("41-3-0123abcd", "00000041-3-0123ABCD", "00000041-3", "x"):
        assert CheckpointId.parse(text) is None
    assert (align(1, 100), align(1, 65536), align(4096, 65536)) == (64, 4096, 4096)


def test_epochs_order_before_steps():
    assert CheckpointId(step=1, epoch=2, attempt="a" * 8) > CheckpointId(step=9, epoch=1, attempt="b" * 8)
