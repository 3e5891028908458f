//! Bad input gives an error that names it, with the documented exit code, and changes no file.

mod workload_file;

use std::path::Path;

use support::{Finished, Folder, finish, finish_waiting, run, yardstick};

/// A bad command line, its exit code, and parts of the error message.
struct Case {
    arguments: &'static [&'static str],
    code: i32,
    message: &'static [&'static str],
}

const fn usage(arguments: &'static [&'static str], message: &'static [&'static str]) -> Case {
    Case { arguments, code: 2, message }
}

/// Bad flags and values, those of a workload by examples: `models` tests them all. `train` and
/// `plan` read the same configuration.
const COMMAND_LINES: &[Case] = &[
    usage(&["trian"], &["trian"]),
    usage(&[], &["Usage"]),
    usage(&["train", "--wrokload", "smoke"], &["--wrokload"]),
    usage(&["train", "--workload", "gpt5"], &["gpt5", "presets are", "smoke"]),
    usage(&["train", "--set", "model.layers"], &["model.layers", "section.key=value"]),
    usage(&["train", "--set", "layers=2"], &["layers=2", "section.key"]),
    usage(&["train", "--set", "model.layer=2"], &["unknown key `layer`"]),
    usage(&["train", "--set", "modle.layers=2"], &["unknown key `modle`"]),
    usage(&["train", "--set", "model.layers=0"], &["model.layers", "0", "at least 1"]),
    usage(&["train", "--set", "model.layers=-1"], &["model.layers", "-1"]),
    usage(
        &["train", "--set", "model.layers=two"],
        &["expected a whole number from 0 on, found the text \"two\" in `model.layers`"],
    ),
    usage(&["train", "--set", "data.files=5"], &["expected a list, found `5` in `data.files`"]),
    usage(
        &["train", "--set", "checkpoint.nvme=5"],
        &["expected a table, found `5` in `checkpoint.nvme`"],
    ),
    usage(&["plan", "--set", "model.layers=1000000000"], &["model.layers", "65536"]),
    usage(&["train", "--set", "model.family=rwkv"], &["rwkv", "gpt"]),
    usage(
        &["plan", "--set", "model.layers=2000", "--set", "collectives.bucket_bytes=1"],
        &["collectives.bucket_bytes", "fewer than 1024"],
    ),
    usage(&["train", "--set", "model.rope_theta=1e4"], &["model.rope_theta", "GPT", "llama"]),
    usage(
        &["train", "--workload", "llama-smoke", "--set", "model.rope_scaling={factor=8}"],
        &["low_freq_factor"],
    ),
    usage(
        &["train", "--workload", "llama-smoke", "--set", "model.rope_scaling=8"],
        &["rope_scaling"],
    ),
    usage(&["train", "--set", "data.source=web"], &["web", "synthetic", "files"]),
    usage(&["train", "--set", "data.token_bytes=3"], &["data.token_bytes = 3", "1, 2, 4 or 8"]),
    usage(&["train", "--prometheus", "x"], &["expected an address such as 0.0.0.0:9402"]),
    usage(&["train", "--set", "precision.compute=f16"], &["f16", "f32"]),
    usage(&["train", "--set", "optimizer.weight_decay=-0.1"], &["weight_decay", "-0.1"]),
    usage(&["train", "--set", "optimizer.gradient_norm_max=nan"], &["gradient_norm_max", "NaN"]),
    usage(&["train", "--set", "schedule.decay=step"], &["step", "cosine"]),
    usage(&["train", "--set", "checkpoint.every=5"], &["5", "50steps"]),
    usage(&["train", "--set", "checkpoint.deadline=0s"], &["checkpoint.deadline", "above 0"]),
    usage(&["train", "--set", "checkpoint.keep=0"], &["checkpoint.keep"]),
    usage(&["train", "--set", "collectives.bucket_bytes=0"], &["collectives.bucket_bytes"]),
    usage(
        &["train", "--set", "collectives.bucket_bytes=64Mbit"],
        &["collectives.bucket_bytes", "64Mbit", "expected a size such as 64MiB"],
    ),
    usage(&["train", "--set", "run.data_cache_bytes=-1"], &["expected a size such as", "`-1`"]),
    usage(&["train", "--set", "collectives.deadline=0s"], &["collectives.deadline", "above 0"]),
    usage(
        &["train", "--set", "collectives.deadline=120"],
        &["collectives.deadline", "`120`", "5m"],
    ),
    usage(&["train", "--set", "collectives.deadline=soon"], &["deadline", "soon", "90s, 5m"]),
    usage(&["train", "--set", "collectives.deadline_s=120"], &["unknown key `deadline_s`"]),
    usage(&["train", "--deadline", "0s"], &["collectives.deadline", "0s", "above 0"]),
    usage(&["train", "--set", "run.engine=torch"], &["torch", "fused", "candle"]),
    usage(
        &["train", "--set", "run.attention=xformers"],
        &["run.attention", "xformers", "flash", "wgmma"],
    ),
    usage(
        &["train", "--set", "run.attention=wgmma", "--set", "precision.compute=bf16"],
        &["run.attention = wgmma: expected flash with run.device = cpu"],
    ),
    usage(
        &["train", "--set", "run.attention=wgmma", "--device", "cuda"],
        &["run.attention = wgmma: expected flash with precision.compute = f32"],
    ),
    usage(
        &["train", "--set", "run.tune_matmul=true"],
        &["run.tune_matmul = true: expected false with run.device = cpu"],
    ),
    usage(&["train", "--device", "tpu"], &["tpu", "cpu", "cuda"]),
    usage(&["train", "--engine", "torch"], &["torch", "fused"]),
    usage(&["train", "--threads", "100000"], &["run.threads", "100000", "1024"]),
    usage(&["train", "--target-loss", "nan"], &["nan", "expected a number"]),
    usage(
        &["train", "--eval-every", "2", "--set", "data.evaluation_sequences=5"],
        &["data.evaluation_sequences", "5", "multiple", "4"],
    ),
    usage(&["train", "--steps", "0"], &["--steps", "at least 1"]),
    usage(&["train", "--steps", "201"], &["--steps 201", "schedule.steps = 200"]),
    usage(&["train", "--steps", "many"], &["'many' for '--steps <N>': expected a whole number"]),
    usage(&["comm", "--factor", "1"], &["'--factor <N>': expected a whole number from 2 on"]),
    usage(&["comm", "--min-bytes", "64Q"], &["expected a size such as 64MiB"]),
    usage(&["train", "--checkpoint-every", "soon"], &["soon", "50steps"]),
    usage(&["train", "--eval-every", "0"], &["--eval-every"]),
    usage(&["train", "--deadline", "5steps"], &["5steps", "90s, 5m"]),
    usage(&["train", "--log-format", "xml"], &["xml", "json"]),
    usage(&["train", "--inject", "melt@step=1"], &["melt", "kill"]),
    usage(&["train", "--inject", "kill@step=1,rank=5"], &["--inject", "rank=5", "world size 1"]),
    usage(&["train", "--inject", "nan@step=0"], &["--inject", "step=0", "from 1 to the last, 200"]),
    usage(&["train", "--steps", "5", "--inject", "nan@step=6"], &["step=6", "the last, 5"]),
    usage(
        &["train", "--set", "run.engine=candle", "--set", "precision.compute=bf16"],
        &["precision.compute", "bf16", "f32 with run.engine = candle"],
    ),
    usage(&["workloads", "show", "gpt5"], &["gpt5"]),
    usage(&["plan", "--ranks", "0"], &["--ranks"]),
    usage(&["plan", "--ranks", "4611686018427387904"], &["--ranks", "16777216"]),
    usage(&["plan", "--ranks", "3"], &["global_sequences", "3 ranks"]),
    usage(
        &["plan", "--ranks", "2", "--local-ranks", "5"],
        &["--local-ranks 5", "at most --ranks 2"],
    ),
    usage(&["report", "no-such-folder"], &["no-such-folder"]),
    usage(&["export", "no-such-folder", "--out", "x"], &["no-such-folder", "identity.json"]),
    usage(&["train", "--init-from", "no-such-folder"], &["--init-from", "no-such-folder"]),
    usage(&["ckpt", "ls", "no-such-folder"], &["no-such-folder"]),
    usage(&["data", "inspect", "no-such-file.bin"], &["no-such-file.bin"]),
    usage(&["data", "tokenize", "no-such.txt", "--out", "a.bin"], &["no-such.txt"]),
    Case { arguments: &["train", "--device", "cuda"], code: 3, message: &["cuda"] },
    Case {
        arguments: &["train", "--workload", "gpt3-175b"],
        code: 3,
        message: &["GiB", "available", "hint"],
    },
];

#[test]
fn a_bad_command_line_is_explained() {
    let folder = tempfile::tempdir().unwrap();
    let mut failed = Vec::new();
    for case in COMMAND_LINES {
        let mut command = yardstick(case.arguments);
        command.current_dir(folder.path());
        let finished = finish_waiting(command);
        let missing = case.message.iter().find(|part| !finished.stderr.contains(**part));
        if finished.code != case.code || missing.is_some() {
            failed.push(format!("{:?}: {missing:?}\n{finished:?}", case.arguments));
        }
    }
    assert!(COMMAND_LINES.len() >= 30);
    assert!(failed.is_empty(), "{}", failed.join("\n\n"));
    let left: Vec<_> = std::fs::read_dir(folder.path()).unwrap().collect();
    assert!(left.is_empty(), "a refused command creates no file: {left:?}");
}

fn write(path: &Path, bytes: &[u8]) -> String {
    std::fs::write(path, bytes).unwrap();
    path.to_string_lossy().into_owned()
}

/// Guesses the width of its ids from a pattern.
#[test]
fn a_bad_data_file_is_named_before_the_folder_is_created() {
    let folder = tempfile::tempdir().unwrap();
    let ids = (0..4096_u32).map(|at| at * 31 % 256);
    let bytes: Vec<u8> = ids.flat_map(u32::to_le_bytes).collect();
    let path = write(&folder.path().join("four.bin"), &bytes);
    let out = folder.path().join("out");
    let files = format!("data.files=[\"{path}\"]");
    let data = ["--set", "data.source=files", "--set", &files];
    let train = ["train", "--out", &out.to_string_lossy()];
    let message = ["four.bin", "ids of 4 bytes", "data.token_bytes=4"];
    run(&[&train[..], &data].concat()).expect(2).expect_stderr(&message);
    assert!(!out.exists());
}

/// Feeds text that would become tokens of braces or of compressed bytes, whatever its name.
#[test]
fn an_input_that_is_no_text_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let lines = b"{\"url\":\"u\",\"text\":\"one\"}\n{\"url\":\"v\",\"text\":\"two\"}\n";
    let cases: [(&str, &[u8], &[&str]); 7] = [
        ("lines.jsonl", lines, &["lines.jsonl: expected plain text, found JSON", "--jsonl text"]),
        ("lines.txt", lines, &["lines.txt", "found JSON", "--jsonl text"]),
        ("array.json", b"[\n{\"content\":\"one\"}]", &["JSON array", "jq", "--jsonl content"]),
        ("a.jsonl.gz", b"\x1f\x8b\x08\0aaaa", &["gzip", "zcat"]),
        ("a.zst", b"\x28\xb5\x2f\xfdaaaa", &["zstd", "zstdcat"]),
        ("a.parquet", b"PAR1aaaa", &["Parquet", "JSON lines"]),
        ("utf16.txt", b"\xff\xfea\0b\0", &["a byte 0 at byte 3", "UTF-16"]),
    ];
    let out = folder.path().join("out.bin").to_string_lossy().into_owned();
    let tokenize = ["data", "tokenize", "--vocabulary", "bytes", "--out", &out];
    for (name, bytes, message) in cases {
        let path = write(&folder.path().join(name), bytes);
        run(&[&tokenize[..], &[&path]].concat()).expect(2).expect_stderr(message);
        if name.ends_with(".gz") {
            let lines = [&tokenize[..], &["--jsonl", "text", &path]].concat();
            run(&lines).expect(2).expect_stderr(message);
        }
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1, "{name} alone is there");
        run(&[&tokenize[..], &["--as-text", &path]].concat()).expect(0);
        std::fs::remove_file(&out).unwrap();
        std::fs::remove_file(path).unwrap();
    }
}

/// Ids in files without a header give the same losses in every width that is given.
#[test]
fn a_headerless_file_is_read_in_the_width_that_is_said() {
    let ids = (0..16_384_u64).map(|at| (at * at * 31 + at) % 256);
    let losses = [1, 2, 4, 8].map(|width| {
        let folder = Folder::new();
        let bytes: Vec<u8> =
            ids.clone().flat_map(|id| id.to_le_bytes()[..width].to_vec()).collect();
        let path = write(&folder.sibling("tokens.bin"), &bytes);
        let token_bytes = format!("{width}");
        let inspect = ["data", "inspect", &path, "--token-bytes", &token_bytes];
        run(&inspect).expect(0).expect_stdout(&["16384", "[0, 32, 126, "]);
        let files = format!("data.files=[\"{path}\"]");
        let token_bytes = format!("data.token_bytes={width}");
        let settings = ["data.source=files", &files, &token_bytes].map(|set| ["--set", set]);
        folder.train(&[&["--steps", "2"], settings.as_flattened()].concat()).expect(0);
        folder.losses()
    });
    assert_eq!(losses[0].len(), 2);
    assert!(losses.iter().all(|other| *other == losses[0]), "{losses:?}");
}

/// Ids of one byte are those of the vocabulary of bytes: any file has them.
#[test]
fn text_is_tokens_where_a_token_is_said_to_be_a_byte() {
    let folder = tempfile::tempdir().unwrap();
    let path = write(&folder.path().join("book.txt"), "In the beginning. ".repeat(20).as_bytes());
    let inspect = ["data", "inspect", &path];
    run(&inspect).expect(2).expect_stderr(&["found text", "yardstick data tokenize"]);
    let bytes = run(&[&inspect[..], &["--token-bytes", "1"]].concat()).expect(0);
    bytes.expect_stdout(&["uint8 tokens", "360", "\"In the beginning\""]);
}

#[test]
fn a_folder_that_is_not_a_run_is_refused_and_unchanged() {
    let folder = Folder::new();
    std::fs::create_dir(folder.path()).unwrap();
    let file = folder.path().join("thesis.txt");
    std::fs::write(&file, "unrelated").unwrap();
    folder.train(&[]).expect(2).expect_stderr(&["not the folder of a run"]);
    folder.train(&["--fresh"]).expect(2).expect_stderr(&["--fresh"]);
    assert_eq!(std::fs::read_to_string(file).unwrap(), "unrelated");
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1);
}

#[test]
fn a_folder_that_another_run_writes_to_is_refused() {
    let folder = Folder::new();
    folder.train(&["--steps", "2"]).expect(0);
    let lock = std::fs::File::create(folder.path().join("lock")).unwrap();
    lock.lock().unwrap();
    folder.train(&["--steps", "4"]).expect(2).expect_stderr(&["another run"]);
    drop(lock);
    folder.train(&["--steps", "4"]).expect(0);
}

/// A restart at step 1 would overwrite its steps and record.
#[test]
fn a_run_whose_checkpoints_are_gone_is_refused_and_unchanged() {
    let folder = Folder::new();
    // Killed after a save, so that the record does not mention the checkpoint.
    let saves = ["--checkpoint-every", "2steps", "--set", "checkpoint.background=false"];
    let killed = folder.train(&[&saves[..], &["--inject", "kill@step=3"]].concat());
    assert_eq!(killed.code, -1);
    let checkpoints = folder.path().join("checkpoints");
    let moved = folder.sibling("moved");
    std::fs::rename(&checkpoints, &moved).unwrap();
    let contents = || {
        let files = ["record.json", "config.toml", "attempts/001.json", "steps/r000000.jsonl"];
        files.map(|file| std::fs::read(folder.path().join(file)).unwrap())
    };
    let before = contents();
    let resume = ["--checkpoint-every", "3steps", "--steps", "4"];
    let assert_refused = |case: &str| {
        let message = [&*checkpoints.to_string_lossy(), "step 2", "found none", "mount", "--fresh"];
        folder.train(&resume).expect(6).expect_stderr(&message);
        assert!(before == contents(), "{case}: a file has changed");
    };
    assert_refused("no folder of checkpoints");
    std::fs::create_dir(&checkpoints).unwrap();
    std::fs::copy(moved.join("RUN.json"), checkpoints.join("RUN.json")).unwrap();
    std::fs::create_dir(checkpoints.join("s000000004-a0001-00000001")).unwrap();
    assert_refused("only a checkpoint that was not committed");
    std::fs::remove_dir_all(&checkpoints).unwrap();
    std::fs::rename(&moved, &checkpoints).unwrap();
    folder.train(&resume).expect(0);
    assert_eq!(folder.record()["attempts"][1]["resumed_after_step"], 2);
}

/// Runs `yardstick` so that all saves fail, because a shard exceeds the limit of the file size.
fn run_without_saves(arguments: &[&str]) -> Finished {
    let mut command = std::process::Command::new("sh");
    command.args(["-c", "trap '' XFSZ; ulimit -f 1000; exec \"$@\"", "sh"]);
    command.arg(env!("CARGO_BIN_EXE_yardstick")).args(arguments);
    finish(command)
}

/// Ends after the last step, or the one that reaches the target: no training continues.
#[test]
fn a_failed_save_after_the_last_step_says_that_training_has_ended() {
    for end in [&["--steps", "2"][..], &["--eval-every", "2", "--target-loss", "100"]] {
        for (at_end, code) in [("checkpoint.at_end=false", 0), ("checkpoint.at_end=true", 6)] {
            let folder = Folder::new();
            let out = folder.text();
            let train = ["train", "--out", &out, "--checkpoint-every", "2steps", "--set", at_end];
            let finished = run_without_saves(&[&train[..], end].concat()).expect(code);
            let finished = finished.expect_stderr(&["not saved, and training has ended: "]);
            assert!(!finished.stderr.contains("training continues"), "{finished:?}");
        }
    }
}

/// A restart loses nothing, as there never was a checkpoint.
#[test]
fn a_run_without_a_committed_checkpoint_restarts_at_step_1() {
    let folder = Folder::new();
    let out = folder.text();
    let saves = ["--checkpoint-every", "2steps", "--set", "checkpoint.background=false"];
    let train = [&["train", "--out", &out][..], &saves].concat();
    for failpoint in ["before-shard", "mid-shard", "index-before-vote", "mid-manifest"] {
        let fault = format!("kill@step=2,failpoint={failpoint},attempt=every");
        assert_eq!(run(&[&train[..], &["--inject", &fault]].concat()).code, -1, "{fault}");
    }
    let finished =
        run_without_saves(&[&train[..], &["--inject", "kill@step=5,attempt=5"]].concat());
    let finished = finished.expect(-1);
    assert_eq!(finished.stderr.matches("not saved, training continues").count(), 2, "{finished:?}");
    run(&[&train[..], &["--steps", "3"]].concat()).expect(0);
    let attempts = folder.record()["attempts"].clone();
    assert_eq!(attempts.as_array().unwrap().len(), 6);
    assert_eq!(attempts[5]["resumed_after_step"], 0);
}

#[test]
fn a_folder_of_another_workload_is_refused() {
    let folder = Folder::new();
    folder.train(&["--steps", "2"]).expect(0);
    folder.train(&["--set", "schedule.seed=1"]).expect(2).expect_stderr(&["workload"]);
    assert_eq!(folder.record()["status"], "complete");
}
