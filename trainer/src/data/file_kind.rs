//! Files that are neither text nor tokens, recognised by their first bytes.

/// Kind of file that users name by mistake.
#[derive(Debug)]
pub(super) struct FileKind {
    /// First bytes of the file.
    magic: &'static [u8],
    /// Name, with its article.
    pub(super) name: &'static str,
    /// Advice where tokens were expected.
    pub(super) hint_for_tokens: &'static str,
    /// Advice where text was expected.
    pub(super) hint_for_text: &'static str,
}

impl FileKind {
    /// Returns the kind of a file that begins with these bytes.
    pub(super) fn of(bytes: &[u8]) -> Option<&'static Self> {
        KINDS.iter().find(|kind| bytes.starts_with(kind.magic))
    }
}

/// Returns the kind of a compressed file.
const fn compressed(magic: &'static [u8], name: &'static str, hint: &'static str) -> FileKind {
    FileKind { magic, name, hint_for_tokens: hint, hint_for_text: hint }
}

/// Returns the kind of a table, which may have a column of text.
const fn table(magic: &'static [u8], name: &'static str) -> FileKind {
    let hint_for_tokens = "export its text as JSON lines and use `yardstick data tokenize`";
    let hint_for_text = "export its text as JSON lines and use --jsonl";
    FileKind { magic, name, hint_for_tokens, hint_for_text }
}

/// Advice for tokens where text was expected.
const TRAIN: &str = "its tokens can be trained on as they are";

const KINDS: [FileKind; 13] = [
    compressed(b"\x1f\x8b\x08", "a gzip file", "unpack it first, as with `zcat`"),
    compressed(b"\x28\xb5\x2f\xfd", "a zstd file", "unpack it first, as with `zstdcat`"),
    compressed(b"\xfd7zXZ\0", "an xz file", "unpack it first, as with `xzcat`"),
    compressed(b"BZh", "a bzip2 file", "unpack it first, as with `bzcat`"),
    compressed(b"\x04\x22\x4d\x18", "an lz4 file", "unpack it first, as with `lz4cat`"),
    compressed(b"PK\x03\x04", "a zip file", "unpack it first"),
    table(b"PAR1", "a Parquet file"),
    table(b"ARROW1", "an Arrow file"),
    FileKind {
        magic: b"\x93NUMPY",
        name: "a NumPy array",
        hint_for_tokens: "write only its elements, with ndarray.tofile",
        hint_for_text: "name the text that its numbers were made from",
    },
    FileKind {
        magic: b"GGUF",
        name: "a GGUF model",
        hint_for_tokens: "name a token file",
        hint_for_text: "name a text file",
    },
    FileKind {
        magic: b"MMIDIDX",
        name: "a Megatron index",
        hint_for_tokens: "name the .bin file of the same name",
        hint_for_text: TRAIN,
    },
    FileKind {
        magic: b"\x88\xd8\x34\x01",
        name: "a token file of llm.c",
        hint_for_tokens: "",
        hint_for_text: TRAIN,
    },
    FileKind {
        magic: b"\xa1\xd9\x34\x01",
        name: "a token file of llm.c for Llama 3",
        hint_for_tokens: "",
        hint_for_text: TRAIN,
    },
];
