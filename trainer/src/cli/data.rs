//! `yardstick data`.

use std::path::PathBuf;

use clap::{Args, Subcommand};

use super::{print, print_json};
use crate::data::{self, Format, InputFormat, TokenizePlan, Vocabulary};
use crate::failure::{ExitCode, Failure, Outcome};

/// Make token files from text, or describe one.
#[derive(Debug, Args)]
pub(super) struct Data {
    #[command(subcommand)]
    command: DataCommand,
}

#[derive(Debug, Subcommand)]
enum DataCommand {
    Tokenize(Tokenize),
    Inspect(Inspect),
}

/// Tokenize text or JSON lines into one token file.
#[derive(Debug, Args)]
struct Tokenize {
    /// Text files, tokenized in this order.
    #[arg(required = true, value_name = "INPUT")]
    inputs: Vec<PathBuf>,
    /// The token file to write; an existing one is replaced only on success.
    #[arg(long, value_name = "FILE")]
    out: PathBuf,
    /// Tokenizer.
    #[arg(long, value_enum, value_name = "NAME", default_value = "gpt2")]
    vocabulary: Vocabulary,
    /// The inputs are JSON lines; this field of each line holds a document's text.
    #[arg(long, value_name = "FIELD")]
    jsonl: Option<String>,
    /// Format of the token file.
    #[arg(long, value_enum, default_value = "llmc")]
    format: Format,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

/// Describe a token file: its format, tokens and documents.
#[derive(Debug, Args)]
struct Inspect {
    /// The token file.
    #[arg(value_name = "FILE")]
    file: PathBuf,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

impl Data {
    pub(super) fn run(self) -> Outcome<ExitCode> {
        match self.command {
            DataCommand::Tokenize(tokenize) => tokenize.run(),
            DataCommand::Inspect(inspect) => inspect.run(),
        }
    }
}

impl Tokenize {
    fn run(self) -> Outcome<ExitCode> {
        self.check()?;
        let plan = TokenizePlan {
            inputs: self.inputs,
            input_format: match self.jsonl {
                Some(field) => InputFormat::Jsonl { field },
                None => InputFormat::Text,
            },
            vocabulary: self.vocabulary,
            out: self.out,
            output_format: self.format,
        };
        let report = data::tokenize(&plan)?;
        if self.json {
            return print_json(&report);
        }
        print(format!(
            "{}: {} tokens of {} documents, {} bytes of text",
            report.out.display(),
            report.tokens,
            report.documents,
            report.text_bytes
        ))
    }

    /// Refuses JSON lines without --jsonl: they would be tokenized as plain text, braces included.
    fn check(&self) -> Outcome<()> {
        let is_json = |path: &&PathBuf| {
            let is = |name| path.extension().is_some_and(|found| found.eq_ignore_ascii_case(name));
            is("jsonl") || is("ndjson")
        };
        match self.inputs.iter().find(is_json).filter(|_| self.jsonl.is_none()) {
            None => Ok(()),
            Some(path) => Err(Failure::usage(format!(
                "{}: JSON lines by its name: expected --jsonl FIELD with the field of the text, \
                 as in --jsonl text\n  hint: give it another name to have all of it as text",
                path.display()
            ))),
        }
    }
}

impl Inspect {
    fn run(self) -> Outcome<ExitCode> {
        let inspection = data::inspect(&self.file)?;
        if self.json { print_json(&inspection) } else { print(inspection) }
    }
}
