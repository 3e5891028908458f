//! `yardstick data`.

use std::path::PathBuf;

use clap::{Args, Subcommand};

use super::{print, print_json};
use crate::assemble::data_failure;
use crate::data::{self, Format, InputFormat, TokenizePlan, Vocabulary};
use crate::failure::{ExitCode, Failure, Outcome};

/// Make token files of text, or say what a file is.
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

/// Turn text or JSON lines into one token file.
#[derive(Debug, Args)]
struct Tokenize {
    /// Text files, in this order.
    #[arg(required = true)]
    inputs: Vec<PathBuf>,
    /// The token file to make; it is replaced only when all went well.
    #[arg(long, value_name = "FILE")]
    out: PathBuf,
    /// What turns text into token ids.
    #[arg(long, value_enum, default_value = "gpt2")]
    vocabulary: Vocabulary,
    /// Inputs are JSON lines, with each document's text in this field.
    #[arg(long, value_name = "FIELD")]
    jsonl: Option<String>,
    /// Family of the token file.
    #[arg(long, value_enum, default_value = "llmc")]
    format: Format,
    /// As JSON.
    #[arg(long)]
    json: bool,
}

/// Say what a token file is.
#[derive(Debug, Args)]
struct Inspect {
    /// The file.
    file: PathBuf,
    /// As JSON.
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
        let report = data::tokenize(&plan).map_err(data_failure)?;
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

    /// Refuses what is called JSON lines and would be taken as one text, braces and all.
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
        let inspection = data::inspect(&self.file).map_err(data_failure)?;
        if self.json { print_json(&inspection) } else { print(inspection) }
    }
}
