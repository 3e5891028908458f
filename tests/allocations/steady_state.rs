//! Allocations of the training thread in steps 4 to 12, in a test binary with the counting
//! allocator.

use device::Device;
use trainer::config::Config;
use trainer::data::Source;
use trainer::fault_injection::Injector;
use trainer::mesh::Mesh;
use trainer::step::{Requests, Trainer};

use support::counting::own_calls;
use support::{SEVERAL_BUCKETS, Variant};

/// Configuration of a training.
pub(crate) struct Training<'a> {
    pub(crate) device: Device,
    pub(crate) mesh: Mesh<'a>,
    pub(crate) threads: usize,
    /// Settings beside those of the variant.
    pub(crate) settings: &'a [&'a str],
}

impl Training<'_> {
    /// Trains on a pool of threads, and counts.
    pub(crate) fn allocations(&self, variant: Variant) -> u64 {
        let settings = variant.settings();
        let settings = settings.iter().chain(&[SEVERAL_BUCKETS]).chain(self.settings);
        let overrides: Vec<String> = settings.map(|&setting| setting.to_owned()).collect();
        let config = Config::load(variant.workload, &overrides).unwrap();
        let vocabulary = config.workload.model.vocabulary;
        let source =
            Source::open(&config.workload.data, vocabulary, &config.data_locations()).unwrap();
        let pool = rayon::ThreadPoolBuilder::new().num_threads(self.threads).build().unwrap();
        pool.install(|| {
            let injector = Injector::default();
            let Self { device, mesh, .. } = self;
            let mut trainer = Trainer::new(&config, &source, device, *mesh, injector).unwrap();
            let mut step = || {
                trainer.time_step(|trainer| trainer.step(Requests::default)).unwrap();
            };
            (0..3).for_each(|_| step());
            own_calls(|| (3..12).for_each(|_| step()))
        })
    }
}
