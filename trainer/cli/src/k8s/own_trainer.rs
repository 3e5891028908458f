//! Trainer interface of the crate `k8s`, implemented by this program.

use ::k8s::{Memory, NoRoom, Ranks, Trainer, Workload};

use crate::train::config_of;
use trainer::config::Config;
use trainer::doctor::Required;
use trainer::failure::Failure;
use trainer::mesh::MeshShape;
use trainer::plan::{JobShape, RankPlan, with_chosen_recompute};

/// Trainer of this program.
pub(super) struct OwnTrainer;

impl Trainer for OwnTrainer {
    fn is_preset(&self, name: &str) -> bool {
        models::presets::text(name).is_some()
    }

    fn load(&self, arguments: &[String]) -> Result<Box<dyn Workload>, String> {
        let config = config_of(arguments).map_err(text)?;
        config.refuse_secrets().map_err(text)?;
        Ok(Box::new(Loaded(config)))
    }

    fn require_checks(&self, names: &[String]) -> Result<(), String> {
        Required::of(names).map(drop)
    }
}

/// Configuration that was loaded for a job.
#[derive(Debug)]
pub(super) struct Loaded(pub(super) Config);

impl Workload for Loaded {
    fn name(&self) -> &str {
        &self.0.name
    }

    fn id(&self) -> Option<String> {
        let workload = &self.0.workload;
        workload.data.files.is_empty().then(|| workload.id(None))
    }

    fn is_on_cuda(&self) -> bool {
        self.0.is_on_cuda()
    }

    fn inputs(&self) -> Vec<&str> {
        let data = &self.0.workload.data;
        let files = data.files.iter().chain(&data.evaluation_files);
        files.chain(&self.0.settings.run.init_from).map(String::as_str).collect()
    }

    fn check(&self, world: usize) -> Result<(), String> {
        MeshShape::of(&self.0.settings.parallel, world).map_err(text)?;
        let batch = &self.0.workload.batch;
        batch.accumulation(world).map(drop).map_err(|error| error.to_string())
    }

    fn check_memory(&self, ranks: Ranks, memory: Memory) -> Result<(), NoRoom> {
        let Ranks { world, per_node: local } = ranks;
        let shape = JobShape { world, local, threads: 1, shares_memory: true };
        let pod = |failure| NoRoom::Pod(text(failure));
        let refused = |failure| NoRoom::Refused(text(failure));
        let config = with_chosen_recompute(&self.0, shape, memory.gpu_bytes).map_err(refused)?;
        let mut plan = RankPlan::new(&config, shape, None).map_err(refused)?;
        plan = plan.on_machine(memory.pod_bytes);
        if let Some(bytes) = memory.gpu_bytes {
            plan = plan.on_device(bytes);
            let required = plan.require_on_device("the memory of a worker's GPU does not suffice");
            required.map_err(|failure| NoRoom::Gpu(text(failure)))?;
        }
        let least = plan.total_bytes.saturating_sub(plan.tolerance_bytes());
        if memory.pod_bytes.is_some_and(|bytes| least <= bytes / local as u64) {
            return Ok(());
        }
        plan.require_on_machine("a worker").map_err(pod)
    }
}

fn text(failure: Failure) -> String {
    failure.to_string()
}
