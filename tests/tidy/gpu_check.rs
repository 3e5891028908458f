//! `scripts/gpu-check.sh` in a folder as `--pack` makes it, with stand-ins for its programs: its
//! plan, and what it reports of steps that fail, take too long or are skipped.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use serde_json::Value;

/// Lists no device, and no library.
const NO_DEVICE: &str = "{\"cuda\": {\"unusable\": \"no CUDA driver\", \"devices\": [], \
                         \"versions\": {\"nccl\": null}}}";

/// A check's folder of programs, and its folder of results.
struct Check {
    folder: tempfile::TempDir,
}

impl Check {
    fn new() -> Self {
        let check = Self { folder: tempfile::tempdir().expect("a temporary folder") };
        let top = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        for folder in ["scripts", "bench"] {
            for entry in fs::read_dir(top.join(folder)).expect("a folder") {
                let path = entry.expect("an entry").path();
                if path.is_file() {
                    let to = check.path(path.file_name().expect("a name").to_str().expect("text"));
                    fs::copy(&path, to).expect("it can be copied");
                }
            }
        }
        check.devices(NO_DEVICE);
        for tests in ["yardstick_models", "cuda_engine", "cuda_nccl_backend"] {
            check.program(tests, "exit 1");
        }
        check
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Plants a program with the lines of a shell script.
    fn program(&self, name: &str, lines: &str) {
        fs::write(self.path(name), format!("#!/bin/bash\n{lines}\n")).expect("it can be written");
        let executable = fs::Permissions::from_mode(0o755);
        fs::set_permissions(self.path(name), executable).expect("it is ours");
    }

    /// Plants a program that answers with these devices.
    fn devices(&self, json: &str) {
        let answers = format!("case $1 in --version) echo 1 ;; devices) echo '{json}' ;; esac");
        self.program("yardstick", &answers);
    }

    /// Replaces the plan. A row does what a function of the scripts, or a program, does.
    fn plan(&self, rows: &str) {
        fs::write(self.path("gpu-plan.txt"), rows).expect("it can be written");
    }

    /// Runs the script.
    fn run(&self, flags: &[&str]) -> Output {
        let mut bash = Command::new("bash");
        let others = std::env::var("PATH").expect("a search path");
        bash.arg(self.path("gpu-check.sh")).args(flags);
        bash.env("PATH", format!("{}:{others}", self.folder.path().display()));
        bash.output().expect("bash runs")
    }

    /// The logs of all steps.
    fn logs(&self) -> String {
        let archive = self.path("out/gpu-check-logs.tar.gz");
        let mut tar = Command::new("tar");
        tar.args(["--extract", "--to-stdout", "--wildcards", "--file"]).arg(archive).arg("*.log");
        let output = tar.output().expect("tar runs");
        String::from_utf8_lossy(&output.stdout).into_owned()
    }

    /// Runs steps into the folder of results.
    fn check(&self, flags: &[&str]) -> Checked {
        let out = self.path("out");
        let output = self.run(&[&["--out", &out.display().to_string()], flags].concat());
        let json = fs::read_to_string(out.join("gpu-check.json")).unwrap_or_default();
        Checked {
            status: output.status.code(),
            stdout: String::from_utf8_lossy(&output.stdout).into_owned(),
            json: serde_json::from_str(&json).unwrap_or_default(),
        }
    }
}

#[derive(Debug)]
struct Checked {
    status: Option<i32>,
    stdout: String,
    json: Value,
}

impl Checked {
    /// Name, result and figure of each step.
    fn steps(&self) -> Vec<[&str; 3]> {
        let steps = self.json["steps"].as_array().expect("steps").iter();
        let keys = ["name", "result", "figure"];
        steps.map(|step| keys.map(|key| step[key].as_str().expect("a text"))).collect()
    }
}

/// A step that passes, one that fails, one that is stopped after a second, and one that is skipped.
const FAULTS: &str = "\
1 right   1 20 -     figure 7 passed
1 wrong   1 20 -     false
1 late    1  1 -     timed sleep 60
1 lacking 1 20 nccl figure never
2 last    1 20 -     figure it ran
";

#[test]
fn no_failure_stops_the_steps_after_it() {
    let check = Check::new();
    check.plan(FAULTS);
    let checked = check.check(&[]);
    assert_eq!(checked.status, Some(1), "{checked:?}");
    let no_nccl = "no NCCL on this machine";
    let expected = [
        ["right", "pass", "7 passed"],
        ["wrong", "fail", "exit code 1:"],
        ["late", "fail", "over its time limit of 1 s:"],
        ["lacking", "skip", no_nccl],
        ["last", "pass", "it ran"],
    ];
    assert_eq!(checked.steps(), expected);
    for line in [
        "2 passed, 2 failed, 1 skipped, 0 not run: ".to_owned(),
        format!("not shown: lacking: {no_nccl}"),
    ] {
        assert!(checked.stdout.contains(&line), "{}", checked.stdout);
    }
    let row = checked.stdout.lines().rfind(|line| line.starts_with("late ")).expect("a row");
    assert!(row.contains("over its time limit"), "{row}");
}

#[test]
fn a_required_step_fails_where_it_would_be_skipped() {
    let check = Check::new();
    check.plan(FAULTS);
    let checked = check.check(&["--only", "right,lacking", "--require", "lacking"]);
    assert_eq!(checked.status, Some(1), "{checked:?}");
    let figure = "required, but skipped: no NCCL on this machine";
    assert_eq!(checked.steps()[1], ["lacking", "fail", figure]);
    assert_eq!(checked.json["not_run"], serde_json::json!(["wrong", "late", "last"]));
    assert_eq!(check.run(&["--only", "right,nothing"]).status.code(), Some(2), "no such step");
}

#[test]
fn a_check_is_continued_in_its_folder() {
    let check = Check::new();
    check.plan(FAULTS);
    let first = check.check(&["--call", "1"]);
    assert_eq!(first.steps().len(), 4, "{first:?}");
    // A call has the failures of earlier ones.
    let second = check.check(&["--call", "2"]);
    assert_eq!((second.status, second.steps().len()), (Some(1), 5), "{second:?}");
    // What is repaired passes now; what passed is not run again, or it would fail.
    check
        .plan(&FAULTS.replace("figure 7 passed", "false").replace("     false", "     figure now"));
    let third = check.check(&[]);
    assert_eq!(third.status, Some(1), "{third:?}");
    let results: Vec<_> = third.steps().iter().map(|step| [step[0], step[1]]).collect();
    let expected = [
        ["right", "pass"],
        ["wrong", "pass"],
        ["late", "fail"],
        ["lacking", "skip"],
        ["last", "pass"],
    ];
    assert_eq!(results, expected, "{third:?}");
    // The machine is asked again: what it lacked may be there now, or it may be another one.
    let has_nccl = NO_DEVICE.replace("null", "\"2.30\"");
    check.devices(&has_nccl);
    let fourth = check.check(&[]);
    assert_eq!(fourth.steps()[3], ["lacking", "pass", "never"], "{fourth:?}");
    check.devices(&has_nccl.replace("[]", "[{\"name\": \"another\"}]"));
    let other = check.run(&["--out", &check.path("out").display().to_string()]);
    assert_eq!(other.status.code(), Some(2), "{other:?}");
    check.devices(&has_nccl);
    let other = check.run(&["--small", "--out", &check.path("out").display().to_string()]);
    assert_eq!(other.status.code(), Some(2), "other settings");
    assert!(String::from_utf8_lossy(&other.stderr).contains("small: false"), "{other:?}");
}

#[test]
fn a_step_without_time_left_in_its_call_is_left_for_the_next() {
    let check = Check::new();
    check.plan("1 long 571 590 - figure never\n1 short 1 20 - figure done\n");
    let checked = check.check(&["--call", "1"]);
    assert_eq!(checked.steps(), [["short", "pass", "done"]], "{checked:?}");
    assert!(checked.stdout.contains("no time left in this call"), "{checked:?}");
    assert_eq!(checked.json["not_run"], serde_json::json!(["long"]));
}

/// The plan itself: each call is in less than ten minutes, and each row can be run.
#[test]
fn every_call_of_the_plan_takes_less_than_ten_minutes() {
    let check = Check::new();
    let output = check.run(&["--dry-run"]);
    let plan = String::from_utf8_lossy(&output.stdout);
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    assert!(plan.contains("no GPU here, so that every step would fail: no CUDA driver"), "{plan}");
    assert!(plan.contains("nccl (skipped here: no NCCL on this machine"), "{plan}");
    assert!(plan.contains("\nall: ") && plan.contains("\npack: "), "{plan}");
    assert!(!plan.contains("warning"), "{plan}");

    let rows = fs::read_to_string(check.path("gpu-plan.txt")).expect("the plan");
    let functions = ["gpu-steps.sh", "gpu-speed.sh"]
        .map(|file| fs::read_to_string(check.path(file)).expect("a script"));
    let mut last_call = 0;
    for row in rows.lines().filter(|line| !line.starts_with('#')) {
        let words: Vec<_> = row.split_whitespace().collect();
        let [call, expected, limit] = [0, 2, 3].map(|i| words[i].parse::<u32>().expect("a number"));
        assert!(call >= last_call, "{row}: calls are in order");
        last_call = call;
        assert!(expected < limit && limit < 600, "{row}");
        let function = format!("\n{}() {{", words[5]);
        assert!(functions.iter().any(|text| text.contains(&function)), "{row}");
    }

    check.plan("1 one 400 500 - devices\n1 two 300 500 - devices\n");
    let output = check.run(&["--dry-run"]);
    let plan = String::from_utf8_lossy(&output.stdout);
    assert!(plan.contains("warning: call 1 takes more than 9.5 minutes"), "{plan}");
}

/// A profiler that writes three launches as ncu does: lines of its own, units, thousands.
const PROFILER: &str = r#"
while [ "$1" != --log-file ]; do shift; done
sed 's/^ *//' >"$2" <<'CSV'
    ==PROF== Connected to process 7
    "ID","Kernel Name","dram__bytes_read.sum","dram__bytes_write.sum","gpu__time_duration.sum"
    "","","byte","byte","ns"
    "0","flash_forward","1,000,000","2,000,000","3,000,000"
    "1","nvjet_tst_64x8, short","1","1","5"
    "2","nvjet_tst_128x256","10","20","1,500,000"
    "3","flash_backward_queries","1","1","1"
    "4","flash_backward_keys","1","1","1"
    "5","layer_norm_backward","1","1","1"
    "6","column_partials","1","1","1"
    "7","column_sums","1","1","1"
    ==PROF== Disconnected from process 7
CSV
"#;

#[test]
fn a_profile_has_the_sums_of_each_kernel() {
    let check = Check::new();
    check.program("ncu", PROFILER);
    let checked = check.check(&["--only", "kernel-profile"]);
    assert_eq!(checked.status, Some(0), "{checked:?}");
    let figure = "8 launches, 4.50001 ms; the head's product by nvjet_tst_128x256";
    assert_eq!(checked.steps(), [["kernel-profile", "pass", figure]]);
    let kernels = &checked.json["kernels"];
    assert_eq!(kernels["attention_forward"]["milliseconds"], 3.0);
    assert_eq!(kernels["attention_forward"]["written_bytes"], 2e6);
    assert_eq!(kernels["column_sums"]["launches"], 2);
    assert_eq!(kernels["head_product"]["read_bytes"], 10.0);

    check.program("ncu", &PROFILER.replace("layer_norm", "renamed"));
    let renamed = check.check(&["--only", "kernel-profile"]);
    assert_eq!(renamed.status, Some(0), "what passed is kept: {renamed:?}");
    let out = check.path("renamed").display().to_string();
    let renamed = check.run(&["--only", "kernel-profile", "--out", &out]);
    let said = String::from_utf8_lossy(&renamed.stdout);
    assert!(
        renamed.status.code() == Some(1) && said.contains("no launch of norm_backward"),
        "{said}"
    );

    check.program("ncu", "echo '==ERROR== ERR_NVGPUCTRPERM - no permission' >&2; exit 1");
    let out = check.path("other").display().to_string();
    let refused = check.run(&["--only", "kernel-profile", "--out", &out]);
    assert_eq!(refused.status.code(), Some(0), "{refused:?}");
    let said = String::from_utf8_lossy(&refused.stdout);
    assert!(said.contains("not shown: kernel-profile: the driver lets only"), "{said}");
}

/// PyTorch that takes 1.2 s for a step in its default mode, and 1.15 s in the other; of 1.3B 0.9 s.
/// More than 32,768 tokens at a time do not fit.
const TORCH: &str = r#"
import json, sys
job = json.loads(sys.argv[1])
if job["micro_batch"] * job["tokens"] > 32768:
    sys.exit("torch.OutOfMemoryError: CUDA out of memory.")
is_default = job["mode"] == "default"
step = 0.9 if job["layers"] == 24 else 1.2 if is_default else 1.15
print("a line before the last")
cublaslt = "13.1.0" if is_default else "13.0.0"
print(json.dumps({"seconds": step * job["steps"], "cublaslt": cublaslt}))
"#;

/// yardstick that takes 1 s for a step, and 9 s for each of the first three, with one GPU of this
/// size of memory. More than 32,768 tokens at a time do not fit.
fn timed_yardstick(memory_bytes: u64) -> String {
    let template = r#"
case $1 in
    --version) echo 1 ;;
    devices)
        echo '{"cuda": {"unusable": null, "devices": [{"name": "NVIDIA H100 80GB HBM3",
            "memory_bytes": MEMORY}], "versions": {"nccl": null}}}' ;;
    train)
        while [ $# -gt 0 ]; do
            case $1 in
                --out) out=$2 ;;
                --steps) steps=$2 ;;
                batch.micro_sequences=*) micro=${1#*=} ;;
                batch.sequence_tokens=*) tokens=${1#*=} ;;
            esac
            shift
        done
        if [ $((micro * tokens)) -gt 32768 ]; then
            echo "error: the memory does not suffice" >&2
            exit 3
        fi
        mkdir -p "$out/steps"
        for ((step = 0; step < steps; step++)); do
            echo "{\"wall_ns\": $((step < 3 ? 9 : 1))000000000}"
        done >"$out/steps/r000000.jsonl"
        echo '{"mfu_causal": 0.4, "tokens_per_second": {"step": {"total": 131072.0}},
            "ranks": [{"device": {"name": "NVIDIA H100 80GB HBM3"}}],
            "environment": {"cuda": {"cublaslt": "13.1.0"}},
            "steps": {"flops_per_token": {"causal": 8e8}}}' >"$out/record.json" ;;
esac
"#;
    template.replace("MEMORY", &memory_bytes.to_string())
}

const AGAINST_TORCH: &str = "\
1 torch-124M          1 60 torch against_torch 124M default 2
1 torch-124M-autotune 1 60 torch against_torch 124M max-autotune-no-cudagraphs 2
1 torch-1.3B          1 60 torch against_torch 1.3B default 2
";

/// Steps against PyTorch, with stand-ins for it and for yardstick.
fn against_torch(yardstick: &str) -> (Check, Checked) {
    let check = Check::new();
    check.program("yardstick", yardstick);
    fs::write(check.path("torch_gpt.py"), TORCH).expect("it can be written");
    fs::write(check.path("torch.py"), "def zeros(n, device): pass\n").expect("it can be written");
    check.program("python3", "PATH=${PATH#*:} PYTHONPATH=${0%/*} exec python3 -B \"$@\"");
    check.plan(AGAINST_TORCH);
    let checked = check.check(&[]);
    (check, checked)
}

#[test]
fn the_ratio_to_compiled_pytorch_is_of_the_measured_steps() {
    let (_, checked) = against_torch(&timed_yardstick(85_000_000_000));
    assert_eq!(checked.status, Some(1), "{checked:?}");
    let expected = [
        ["torch-124M", "pass", "ratio 1.20 to PyTorch default (goal 1.1); cuBLASLt 13.1.0 for all"],
        [
            "torch-124M-autotune",
            "pass",
            "ratio 1.15 to PyTorch max-autotune-no-cudagraphs (goal 1.1); cuBLASLt differs: \
             13.0.0 for PyTorch max-autotune-no-cudagraphs, 13.1.0 for yardstick; least of 2 \
             modes 1.15",
        ],
        ["torch-1.3B", "fail", "ratio 0.90 to PyTorch default (goal 1.1); cuBLASLt 13.1.0 for all"],
    ];
    assert_eq!(checked.steps(), expected);
    let rows = checked.json["torch"].as_array().expect("the rows of the benchmark");
    let autotuned = rows.iter().find(|row| row["programs"].get("PyTorch default").is_none());
    let rates = |program: &str| {
        let rates = &autotuned.expect("a row")["programs"][program]["tokens_per_second"];
        rates.as_array().expect("a rate of each round").clone()
    };
    assert_eq!(rates("yardstick"), [131_072.0, 131_072.0]);
    assert_eq!(rates("PyTorch max-autotune-no-cudagraphs").len(), 2);
}

/// A smaller GPU than that of the given micro-batches.
#[test]
fn micro_batches_are_searched_for_where_those_of_the_plan_may_not_fit() {
    let (check, checked) = against_torch(&timed_yardstick(40_000_000_000));
    let [_, result, figure] = checked.steps()[0];
    assert_eq!(result, "pass", "{checked:?}");
    assert!(figure.starts_with("ratio 1.20 to PyTorch default"), "{figure}");
    let logs = check.logs();
    for line in [
        "PyTorch                             micro-batch 64: does not fit",
        "yardstick                           micro-batch 64: does not fit",
        "yardstick                           best micro-batch: 32",
        "yardstick                           best micro-batch: 16",
    ] {
        assert!(logs.contains(line), "{line}: {logs}");
    }
}

#[test]
fn a_yardstick_that_fails_against_pytorch_is_named_with_its_last_line() {
    let yardstick = timed_yardstick(85_000_000_000);
    let broken = yardstick
        .replace("        mkdir", "        echo 'error: broken' >&2; exit 1\n        mkdir");
    let (_, checked) = against_torch(&broken);
    assert_eq!(checked.steps()[0], ["torch-124M", "fail", "error: broken"], "{checked:?}");
}
