//! Tests that bad token files are refused, with the file, the offset and the expectation.

use rustix::fs::{CWD, FileType, mknodat};

use super::*;

/// Writes files, opens `a.bin` and compares the whole error message.
#[track_caller]
fn assert_refused(files: &[(&str, Vec<u8>)], message: &str) {
    let folder = folder();
    for (name, bytes) in files {
        write(&folder, name, bytes);
    }
    assert_eq!(open_error(folder.path(), &config(&["a.bin"], &[], 2)), message);
}

fn tokens(count: u16) -> Vec<u8> {
    raw(0..count)
}

#[test]
fn missing_and_empty_files() {
    let message = "a.bin: cannot open the token file: No such file or directory (os error 2)";
    assert_refused(&[], message);
    assert_refused(
        &[("a.bin", vec![])],
        "a.bin: truncated at byte 0: expected 2 bytes (at least one \
        token), found 0; copy or create the file again",
    );
    let folder = folder();
    std::fs::create_dir(folder.path().join("a.bin")).unwrap();
    let message = open_error(folder.path(), &config(&["a.bin"], &[], 2));
    let expected = "a.bin: byte 0: expected a regular file, found a folder; name each token file";
    assert_eq!(message, expected);
    std::fs::remove_dir(folder.path().join("a.bin")).unwrap();
    mknodat(CWD, folder.path().join("a.bin"), FileType::Fifo, 0o600.into(), 0).unwrap();
    let message = open_error(folder.path(), &config(&["a.bin"], &[], 2));
    assert_eq!(message, expected.replace("a folder", "a special file"), "not an endless wait");
}

#[test]
fn wrong_magic_numbers() {
    let expected = "a.bin: byte 0: expected the llm.c magic 20240520 (GPT-2) or 20240801 \
        (llama-3), found ";
    for magic in [20_240_521, 1234, 77, 1, u32::MAX] {
        let message = format!("{expected}{magic}");
        assert_refused(&[("a.bin", llmc(magic, 1, 100, &tokens(100)))], &message);
    }
    let not_tokens = "expected a token file (llm.c, nanoGPT uint16, or Megatron .bin with .idx), \
        found";
    let text = "In the beginning God created the heaven and the earth. And the earth was \
        without form, and void.";
    let text_hint = "text; convert it with `yardstick data tokenize`";
    for (bytes, found) in [
        (text.as_bytes().to_vec(), text_hint),
        ("\u{8d77}\u{521d}\u{ff0c}\u{795e}".repeat(8).into_bytes(), text_hint),
        (b"\x1f\x8b\x08\0aaaaaaaa".to_vec(), "a gzip file; unpack it first, as with `zcat`"),
        (b"MMIDIDX\0\0\x01".to_vec(), "a Megatron index; name the .bin file of the same name"),
        (
            20_240_520_u32.to_be_bytes().to_vec(),
            "big-endian llm.c tokens; write them on a little-endian machine",
        ),
    ] {
        assert_refused(&[("a.bin", bytes)], &format!("a.bin: byte 0: {not_tokens} {found}"));
    }
}

#[test]
fn bad_llmc_headers() {
    let file = |version, count| vec![("a.bin", llmc(20_240_520, version, count, &tokens(100)))];
    assert_refused(&file(2, 100), "a.bin: byte 4: expected version 1, found 2");
    assert_refused(
        &file(1, u32::MAX),
        "a.bin: byte 8: expected a token count of at least 0, found -1",
    );
    let expected = "a.bin: truncated at byte 1224: expected 1226 bytes (the header counts 101 \
        tokens), found 1224; copy or create the file again";
    assert_refused(&file(1, 101), expected);
    let expected = "a.bin: byte 1222: expected the end of the file (the header counts 99 tokens), \
        found 2 more bytes";
    assert_refused(&file(1, 99), expected);
    let short = llmc(20_240_520, 1, 100, &[])[..1000].to_vec();
    let expected = "a.bin: truncated at byte 1000: expected 1024 bytes (the llm.c header), found \
        1000; copy or create the file again";
    assert_refused(&[("a.bin", short)], expected);
}

#[test]
fn a_raw_file_of_odd_size() {
    let mut bytes = tokens(100);
    bytes.push(0);
    let expected = "a.bin: byte 201: expected 2 bytes for each token (uint16, as in nanoGPT's \
        format), found the end of 201 bytes";
    assert_refused(&[("a.bin", bytes)], expected);
}

#[test]
fn token_ids_beyond_the_vocabulary() {
    let hint = "set model.vocabulary to that of the tokenizer that wrote the file, or \
                data.token_bytes if its tokens are of another size";
    let mut ids: Vec<u16> = (0..100).collect();
    ids[70] = 1000;
    ids[80] = 2000;
    let message = |offset, token| {
        format!(
            "a.bin: byte {offset}: expected token ids below the vocabulary 1000, found {token}; \
             {hint}"
        )
    };
    assert_refused(&[("a.bin", raw(ids.clone()))], &message(140, 1000));
    let payload = raw(ids);
    assert_refused(&[("a.bin", llmc(20_240_520, 1, 100, &payload))], &message(1164, 1000));
    let ids = (0..100).map(|id| if id == 3 { -5_i32 } else { id });
    let payload: Vec<u8> = ids.flat_map(i32::to_le_bytes).collect();
    let idx = index(4, &[100], &[0], &[0, 1]);
    assert_refused(&[("a.bin", payload), ("a.idx", idx)], &message(12, -5));
}

#[test]
fn too_few_tokens() {
    let advice = "add files, or lower batch.sequence_tokens or data.evaluation_sequences";
    let expected = format!(
        "a.bin: expected at least 25 tokens (1 training and 2 held-out sequences of 8 tokens, \
         and a target), found 24; {advice}"
    );
    assert_refused(&[("a.bin", tokens(24))], &expected);
    let folder = folder();
    write(&folder, "a.bin", &tokens(25));
    let config = config(&["a.bin"], &["a.bin"], 4);
    assert!(super::open_training(&config, 1000, 8, folder.path()).is_ok());
    let error = super::open_evaluation(&config, 1000, 8, folder.path()).unwrap_err();
    let expected = "expected at least 33 tokens (4 sequences of 8 tokens, and a target), found 25";
    assert!(error.to_string().contains(expected), "{error}");
}

#[test]
fn bad_megatron_indexes() {
    let check = |idx: Vec<u8>, message: &str| {
        assert_refused(&[("a.bin", tokens(100)), ("a.idx", idx)], message);
    };
    let good = || index(8, &[60, 40], &[0, 120], &[0, 1, 2]);
    let mut bytes = good();
    bytes[3] = b'X';
    let message = "a.idx: byte 0: expected the Megatron magic MMIDIDX\\x00\\x00, found \
        \"MMIXIDX\\x00\\x00\"";
    check(bytes, message);
    let mut bytes = good();
    bytes[9] = 2;
    check(bytes, "a.idx: byte 9: expected version 1, found 2");
    let codes = "token type code 1 (uint8), 4 (int32), 5 (int64) or 8 (uint16)";
    let message = format!("a.idx: byte 17: expected {codes}, found 7 (float32)");
    check(index(7, &[100], &[0], &[0, 1]), &message);
    let message = "a.idx: truncated at byte 81: expected 82 bytes (2 sequences and 3 document \
        marks), found 81; copy or create the file again";
    check(good()[..81].to_vec(), message);
    check(
        index(8, &[60, -1], &[0, 120], &[0, 1, 2]),
        "a.idx: byte 38: expected a length of at \
        least 0, found -1",
    );
    check(
        index(8, &[60, 40], &[0, 122], &[0, 1, 2]),
        "a.idx: byte 50: expected byte offset 120 \
        (sequences are contiguous), found 122",
    );
    check(
        index(8, &[60, 40], &[0, 120], &[0, 1, 3]),
        "a.idx: byte 74: expected a document mark \
        from 2 to 2, found 3",
    );
    check(
        index(8, &[60, 40], &[0, 120], &[]),
        "a.idx: byte 26: expected at least 1 document \
        mark, found 0",
    );
}

#[test]
fn megatron_tokens_that_do_not_match_the_index() {
    let folder = folder();
    write(&folder, "a.idx", &index(8, &[60, 41], &[0, 120], &[0, 1, 2]));
    write(&folder, "a.bin", &tokens(100));
    let message = open_error(folder.path(), &config(&["a.bin"], &[], 2));
    assert!(message.starts_with("a.bin: truncated at byte 200: expected 202 bytes ("), "{message}");
    assert!(message.contains("a.idx counts 101 tokens"), "{message}");
}

#[test]
fn a_missing_evaluation_file_is_named() {
    let folder = folder();
    write(&folder, "a.bin", &tokens(100));
    let message = open_error(folder.path(), &config(&["a.bin"], &["b.bin"], 2));
    assert!(message.starts_with("b.bin: cannot open"), "{message}");
}
