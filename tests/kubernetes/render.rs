//! Manifests that users apply: the benchmark file of the tests, changed and rendered.

/// Controller that runs a job: `--format`.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Format {
    Mpijob,
    Trainjob,
    Argo,
}

impl Format {
    fn name(self) -> &'static str {
        match self {
            Self::Mpijob => "mpijob",
            Self::Trainjob => "trainjob",
            Self::Argo => "argo",
        }
    }

    /// Returns the kind of the object that trains.
    pub(crate) fn kind(self) -> &'static str {
        match self {
            Self::Mpijob | Self::Argo => "mpijob",
            Self::Trainjob => "trainjob",
        }
    }

    /// Returns the labels that select its pods: those of a role, or all of them.
    pub(crate) fn labels(self, name: &str, role: &str) -> String {
        let (of_job, of_role) = match self {
            Self::Mpijob | Self::Argo => {
                ("training.kubeflow.org/job-name", "training.kubeflow.org/job-role")
            }
            Self::Trainjob => {
                ("jobset.sigs.k8s.io/jobset-name", "jobset.sigs.k8s.io/replicatedjob-name")
            }
        };
        let role = match self {
            Self::Trainjob if role == "worker" => "node",
            _ => role,
        };
        let mut labels = format!("{of_job}={name}");
        if !role.is_empty() {
            labels += &format!(",{of_role}={role}");
        }
        labels
    }
}

/// The objects of a job. `changes` replace text of the benchmark file.
pub(crate) fn render(format: Format, name: &str, changes: &[(&str, &str)]) -> String {
    let mut text = include_str!("benchmark.toml").replace("NAME", name);
    for (from, to) in changes {
        assert!(text.contains(from), "no {from} in benchmark.toml");
        text = text.replace(from, to);
    }
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("benchmark.toml");
    std::fs::write(&file, text).unwrap();
    let render = ["k8s", "render", "--format", format.name(), &support::text(&file)];
    support::run(&render).expect(0).stdout
}

/// Adds a fault of the program itself: `train --inject`.
pub(crate) fn inject(yaml: &str, fault: &str) -> String {
    let train = yaml.lines().find(|line| line.trim_start() == "- train");
    let train = train.unwrap_or_else(|| panic!("nothing trains in\n{yaml}"));
    let item = train.replace("train", "");
    yaml.replacen(train, &format!("{train}\n{item}--inject\n{item}{fault}"), 1)
}
