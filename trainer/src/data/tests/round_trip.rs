//! Tests that the tokenizer writes the documented bytes, which are read back unchanged.

use super::*;
use crate::data::{
    DataError, Format, InputFormat, TokenType, TokenizePlan, TokenizeReport, Vocabulary, inspect,
    tokenize,
};

fn plan(input: &Path, vocabulary: Vocabulary, out: PathBuf, format: Format) -> TokenizePlan {
    let jsonl = input.extension().is_some_and(|extension| extension == "jsonl");
    let field = "text".to_owned();
    TokenizePlan {
        inputs: vec![input.to_owned()],
        input_format: if jsonl { InputFormat::Jsonl { field } } else { InputFormat::Text },
        vocabulary,
        out,
        output_format: format,
    }
}

/// Returns the tokens of a file, read in the same way as in training.
fn read_back(path: &Path) -> Vec<u32> {
    let count = inspect(path, None).unwrap().tokens as usize;
    let file = open_tokens(path).unwrap();
    let mut tokens = vec![0; count];
    file.read(0, &mut tokens);
    tokens
}

const TWO_LINES: &str =
    "{\"text\": \"Hello world\", \"id\": 1}\n\n{\"text\": \"\"}\n{\"text\":\"Hi\"}\n";

#[test]
fn every_format_has_its_golden_bytes() {
    let folder = folder();
    let input = write(&folder, "in.jsonl", TWO_LINES.as_bytes());
    // "Hello", " world", end of text, "Hi", end of text
    let ids: [u16; 5] = [15_496, 995, 50_256, 17_250, 50_256];
    let payload = [0x88, 0x3c, 0xe3, 0x03, 0x50, 0xc4, 0x62, 0x43, 0x50, 0xc4];
    assert_eq!(raw(ids), payload);
    for format in [Format::Raw, Format::LlmC, Format::Megatron] {
        let out = folder.path().join(format!("{format:?}.bin"));
        let report = tokenize(&plan(&input, Vocabulary::Gpt2, out.clone(), format)).unwrap();
        let TokenizeReport { documents, tokens, text_bytes, .. } = report;
        assert_eq!((documents, tokens, text_bytes), (2, 5, 13));
        let bytes = std::fs::read(&out).unwrap();
        match format {
            Format::LlmC => {
                assert_eq!(bytes[..12], *b"\x88\xd8\x34\x01\x01\0\0\0\x05\0\0\0");
                assert!(bytes[12..1024].iter().all(|byte| *byte == 0));
                assert_eq!(bytes[1024..], payload);
            }
            _ => assert_eq!(bytes, payload),
        }
        assert!(read_back(&out).into_iter().eq(ids.map(u32::from)));
    }
    let idx = std::fs::read(folder.path().join("Megatron.idx")).unwrap();
    let expected = b"MMIDIDX\0\0\x01\0\0\0\0\0\0\0\x08\x02\0\0\0\0\0\0\0\x03\0\0\0\0\0\0\0\
        \x03\0\0\0\x02\0\0\0\0\0\0\0\0\0\0\0\x06\0\0\0\0\0\0\0\
        \0\0\0\0\0\0\0\0\x01\0\0\0\0\0\0\0\x02\0\0\0\0\0\0\0";
    assert_eq!(idx, expected);
    let mut names: Vec<_> = std::fs::read_dir(folder.path()).unwrap().flatten().collect();
    names.retain(|entry| entry.file_name().to_string_lossy().ends_with(".tmp"));
    assert!(names.is_empty(), "left behind: {names:?}");
}

#[test]
fn documents_of_bytes_end_with_nul() {
    let folder = folder();
    let input = write(&folder, "in.txt", b"a\n\xff");
    let out = folder.path().join("out.bin");
    tokenize(&plan(&input, Vocabulary::Bytes, out.clone(), Format::LlmC)).unwrap();
    assert_eq!(read_back(&out), [97, 10, 255, 0]);
}

/// Rejects text that would decide where a document ends.
#[test]
fn a_byte_0_is_refused_where_it_ends_documents_wherever_it_is() {
    let folder = folder();
    let late = [&vec![b'x'; 3 << 20][..], b"\0more"].concat();
    for (name, text, message) in [
        ("late.txt", &late[..], "byte 3145728: expected text without a byte 0"),
        (
            "escaped.jsonl",
            b"{\"text\": \"a\"}\n{\"text\": \"a\\u0000b\"}",
            "line 2: expected text wi",
        ),
    ] {
        let input = write(&folder, name, text);
        let out = folder.path().join("out.bin");
        let error = tokenize(&plan(&input, Vocabulary::Bytes, out.clone(), Format::LlmC));
        let error = error.unwrap_err().to_string();
        assert!(error.contains(message), "{error}");
        let of_gpt2 = tokenize(&plan(&input, Vocabulary::Gpt2, out, Format::LlmC));
        assert!(of_gpt2.is_ok(), "documents end with another token");
    }
}

#[test]
fn every_token_type_is_read() {
    let folder = folder();
    let ids = [0_u32, 1, 255, 7];
    let uint8 = ids.map(|id| id as u8).to_vec();
    let four: Vec<u8> = ids.into_iter().flat_map(u32::to_le_bytes).collect();
    write(&folder, "u8.idx", &index(1, &[1, 3], &[0, 1], &[0, 1, 2]));
    write(&folder, "i32.idx", &index(4, &[1, 3], &[0, 4], &[0, 2]));
    for (name, bytes, token_type, documents) in [
        ("u8.bin", uint8, TokenType::Uint8, Some(2)),
        ("i32.bin", four.clone(), TokenType::Int32, Some(1)),
        ("u16.bin", raw(ids.map(|id| id as u16)), TokenType::Uint16, None),
        ("llama.bin", llmc(20_240_801, 7, 4, &four), TokenType::Uint32, None),
    ] {
        let path = write(&folder, name, &bytes);
        let inspection = inspect(&path, None).unwrap();
        assert_eq!((inspection.token_type, inspection.documents), (token_type, documents));
        assert_eq!((inspection.largest_token, inspection.first_tokens), (Some(255), ids.to_vec()));
        assert_eq!(read_back(&path), ids);
    }
    assert_eq!(inspect(&folder.path().join("u8.idx"), None).unwrap().documents, Some(2));
}

#[test]
fn modes_in_a_megatron_index_are_skipped() {
    let folder = folder();
    let mut idx = index(8, &[1, 2], &[0, 2], &[0, 1, 2]);
    idx.extend([0, 1]);
    write(&folder, "a.idx", &idx);
    assert_eq!(read_back(&write(&folder, "a.bin", &raw([5, 6, 7]))), [5, 6, 7]);
}

#[test]
fn an_inspection_is_printed_as_a_table() {
    let folder = folder();
    let path = write(&folder, "a.bin", &raw([15_496, 995]));
    let inspection = inspect(&path, None).unwrap();
    let digest = blake3::hash(&std::fs::read(&path).unwrap()).to_hex().to_string();
    assert_eq!(inspection.digest, digest);
    assert_eq!(inspection.first_text.as_deref(), Some("Hello world"));
    let table = inspection.to_string();
    for part in ["uint16", "\"Hello world\"", "[15496, 995]", &digest, "4 bytes"] {
        assert!(table.contains(part), "{part} is not in\n{table}");
    }
}

#[test]
fn a_failed_tokenize_keeps_the_old_file() {
    let folder = folder();
    let out = write(&folder, "out.bin", b"old");
    for (name, text, message) in [
        ("a.txt", &b"good \xff bad"[..], "byte 5: expected UTF-8 text, found byte 0xff"),
        ("b.jsonl", b"{\"text\": \"x\"}\n{", "line 2: expected a JSON object, found EOF"),
        ("c.jsonl", b"{\"txt\": \"x\"}", "line 1: expected a field \"text\", found only txt"),
        ("list.jsonl", b"[\"a\"]", "line 1: expected a JSON object, found a list"),
        (
            "d.jsonl",
            b"{\"text\": 3}",
            "line 1: expected text in the field \"text\", found a number",
        ),
        ("e.txt", b"", "expected at least 1 token (the inputs hold no text), found 0"),
    ] {
        let input = write(&folder, name, text);
        let plan = plan(&input, Vocabulary::Gpt2, out.clone(), Format::Raw);
        let error = tokenize(&plan).unwrap_err().to_string();
        assert!(error.contains(message) && error.contains(name), "{error}");
        assert_eq!(std::fs::read(&out).unwrap(), b"old");
        assert!(!folder.path().join("out.bin.tmp").exists());
    }
}

#[test]
fn a_raw_file_is_not_written_next_to_an_index() {
    let folder = folder();
    let input = write(&folder, "in.txt", b"text");
    let out = folder.path().join("out.bin");
    tokenize(&plan(&input, Vocabulary::Bytes, out.clone(), Format::Megatron)).unwrap();
    let error = tokenize(&plan(&input, Vocabulary::Bytes, out, Format::Raw)).unwrap_err();
    assert!(matches!(error, DataError::Unwritable { format: "raw", .. }), "{error}");
}

#[test]
fn a_raw_file_may_begin_with_any_tokens() {
    let folder = folder();
    let padding = vec![0_u16; 506];
    let varied: Vec<u16> = (0..506).map(|id| id % 7).collect();
    let [zeros, header, one, count] =
        [[0, 0, 0, 0, 0, 0], [77, 0, 1, 0, 20_000, 0], [1, 0, 0, 0, 0, 0], [0, 0, 1, 0, 9, 0]];
    for (first, rest) in [(zeros, &padding), (header, &varied), (one, &padding), (count, &padding)]
    {
        let tokens = [&first[..], rest, &[5; 100]].concat();
        let file = write(&folder, "in.bin", &raw(tokens.iter().copied()));
        let expected: Vec<u32> = tokens.into_iter().map(u32::from).collect();
        assert!(read_back(&file) == expected, "{first:?}");
    }
}

#[test]
fn a_long_text_has_the_same_tokens_as_in_one_piece() {
    let folder = folder();
    let mut text = String::new();
    while text.len() < 3 << 20 {
        let line = text.len();
        let separator = ["\n", "\n\n", " \n", "\n  ", "\r\n", "\n\u{a0}", "\t"][line % 7];
        text += &format!("line {line} it's caf\u{e9} \u{65e5}\u{672c} ...{separator}");
    }
    let input = write(&folder, "in.txt", text.as_bytes());
    let out = folder.path().join("out.bin");
    tokenize(&plan(&input, Vocabulary::Gpt2, out.clone(), Format::Raw)).unwrap();
    let mut whole = tiktoken_rs::r50k_base_singleton().encode_ordinary(&text);
    whole.push(50_256);
    assert!(read_back(&out) == whole, "tokens differ");
}
