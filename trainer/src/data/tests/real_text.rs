//! Real English text: the King James Bible of Debian's `bible-kjv-text`.

use std::process::Command;

use super::*;
use crate::data::{Format, InputFormat, TokenizePlan, Vocabulary, inspect, tokenize};

/// Writes the whole text, one verse per line.
fn bible(folder: &TempDir) -> PathBuf {
    let output = Command::new("bible").args(["-f", "gen1:1-rev22:21"]).output();
    let output = output.expect("`bible` runs; install the package bible-kjv-text");
    assert!(output.status.success() && output.stdout.len() > 4_000_000, "the text is incomplete");
    write(folder, "bible.txt", &output.stdout)
}

#[test]
fn real_text_is_tokenized_and_read() {
    let folder = folder();
    let input = bible(&folder);
    let text = std::fs::read(&input).unwrap();
    for (vocabulary, format) in
        [(Vocabulary::Bytes, Format::LlmC), (Vocabulary::Gpt2, Format::Megatron)]
    {
        let out = folder.path().join(format!("{vocabulary:?}.bin"));
        let plan = TokenizePlan {
            inputs: vec![input.clone()],
            input_format: InputFormat::Text,
            vocabulary,
            out: out.clone(),
            output_format: format,
        };
        let report = tokenize(&plan).unwrap();
        assert_eq!((report.documents, report.text_bytes), (1, text.len() as u64));
        let inspection = inspect(&out, None).unwrap();
        assert_eq!(inspection.tokens, report.tokens);
        assert!(
            inspection.first_text.as_ref().unwrap().starts_with("Ge1:1 In the"),
            "{inspection}"
        );
        if vocabulary == Vocabulary::Bytes {
            assert_eq!(inspection.tokens, text.len() as u64 + 1);
        } else {
            let bytes_per_token = text.len() as f64 / inspection.tokens as f64;
            assert!((2.5..4.5).contains(&bytes_per_token), "{bytes_per_token} bytes per token");
        }
        let config = config(&[out.to_str().unwrap()], &[], 16);
        let held_out =
            super::open_evaluation(&config, vocabulary.tokens(), 128, folder.path()).unwrap();
        assert!(sequence(&*held_out, 15, 128).0.iter().all(|token| *token > 0));
    }
}
