//! `yardstick data`.

use std::path::PathBuf;

use clap::builder::{PossibleValuesParser, TypedValueParser};
use clap::{Args, Subcommand};
use comfy_table::{CellAlignment, Table, presets::NOTHING};
use models::workload::DataConfig;

use super::{print, print_json};
use record::ExitCode;
use record::text::number_format::{self, count};
use trainer::config::Config;
use trainer::data::bench::{FileRates, bench};
use trainer::data::{self, Format, InputFormat, TokenizePlan, Vocabulary};
use trainer::failure::{Failure, Outcome};

/// Make token files from text, describe one, or measure their read rates.
#[derive(Debug, Args)]
pub(super) struct Data {
    #[command(subcommand)]
    command: DataCommand,
}

#[derive(Debug, Subcommand)]
enum DataCommand {
    Tokenize(Tokenize),
    Inspect(Inspect),
    Bench(Bench),
}

/// Tokenize text or JSON lines into one token file.
#[derive(Debug, Args)]
struct Tokenize {
    /// Text files, tokenized in this order.
    #[arg(required = true, value_name = "INPUT")]
    inputs: Vec<PathBuf>,
    /// Token file to write. An existing one is replaced only on success.
    #[arg(long, value_name = "FILE")]
    out: PathBuf,
    /// Tokenizer.
    #[arg(long, value_enum, value_name = "NAME", default_value = "gpt2")]
    vocabulary: Vocabulary,
    /// Read the inputs as JSON lines, with the text of a document in this field of each line.
    #[arg(long, value_name = "FIELD")]
    jsonl: Option<String>,
    /// Read the inputs as text even if they look like JSON or a binary file.
    #[arg(long, conflicts_with = "jsonl")]
    as_text: bool,
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
    /// Token file: a path, or a URL such as s3://bucket/text.bin.
    #[arg(value_name = "FILE")]
    file: PathBuf,
    /// Bytes of a token in a file without header: 1, 2, 4 or 8 [default: 2].
    #[arg(long, value_name = "N", value_parser = PossibleValuesParser::new(["1", "2", "4", "8"])
        .try_map(|text| text.parse::<usize>()))]
    token_bytes: Option<usize>,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

/// Measure the download and read rates of a workload's token files, cold and warm.
///
/// Every object is downloaded once for the measurement, and missing objects are added to the cache
/// of this node. Cold reads come from the disk of the file or of the cache, with nothing in the
/// page cache; warm reads come from memory. Both read blocks of 4 MiB on eight threads.
#[derive(Debug, Args)]
struct Bench {
    /// Preset (see `yardstick workloads`) or TOML file.
    #[arg(long, value_name = "NAME|FILE", default_value = "smoke")]
    workload: String,
    /// Set a value of the configuration, as in `--set 'data.files=["a.bin"]'`; may be repeated.
    #[arg(long = "set", value_name = "SECTION.KEY=VALUE")]
    overrides: Vec<String>,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

impl Data {
    pub(super) fn run(self) -> Outcome<ExitCode> {
        match self.command {
            DataCommand::Tokenize(tokenize) => tokenize.run(),
            DataCommand::Inspect(inspect) => inspect.run(),
            DataCommand::Bench(bench) => bench.run(),
        }
    }
}

impl Tokenize {
    fn run(self) -> Outcome<ExitCode> {
        let plan = TokenizePlan {
            inputs: self.inputs,
            input_format: match self.jsonl {
                Some(field) => InputFormat::Jsonl { field },
                None if self.as_text => InputFormat::AnyBytes,
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
            "{}: {} of {}, {} of text",
            report.out.display(),
            count(report.tokens as usize, "token"),
            count(report.documents as usize, "document"),
            count(report.text_bytes as usize, "byte")
        ))
    }
}

impl Inspect {
    fn run(self) -> Outcome<ExitCode> {
        let inspection = data::inspect(&self.file, self.token_bytes)?;
        if self.json { print_json(&inspection) } else { print(inspection) }
    }
}

impl Bench {
    fn run(self) -> Outcome<ExitCode> {
        let config = Config::load(&self.workload, &self.overrides)?;
        let DataConfig { files, evaluation_files, .. } = &config.workload.data;
        let names = [files.as_slice(), evaluation_files].concat();
        if names.is_empty() {
            return Err(Failure::usage(format!(
                "{}: expected data.files, found none: its tokens are synthetic\n  hint: \
                 --set data.source=files --set 'data.files=[\"FILE\"]'",
                config.name
            )));
        }
        let rates = bench(&names, &config.data_locations())?;
        if self.json { print_json(&rates) } else { print(table(&rates)) }
    }
}

fn table(rates: &[FileRates]) -> String {
    let mut table = Table::new();
    table.load_style(NOTHING);
    table.set_header(["file", "size", "download", "cold", "warm"]);
    let rate =
        |bytes: Option<f64>| bytes.map_or("-".to_owned(), |b| number_format::scaled(b, "B/s"));
    for file in rates {
        table.add_row([
            file.file.display().to_string(),
            number_format::scaled(file.size_bytes as f64, "B"),
            rate(file.download_bytes_per_second),
            rate(file.cold_bytes_per_second),
            rate(Some(file.warm_bytes_per_second)),
        ]);
    }
    for column in table.column_iter_mut().skip(1) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    table.trim_fmt()
}
