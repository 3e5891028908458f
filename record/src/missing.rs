//! One anomaly that lists the figures of a record that are `null` because they are unknown.

use crate::machine::DeviceProperties;

use crate::record::Record;
use crate::sections::Anomaly;

/// Start of the anomaly's text.
const MISSING: &str = "null in the record: ";

impl Record {
    /// Adds the anomaly that lists missing figures with the reasons, and replaces an earlier one.
    ///
    /// A figure that does not apply is not missing: the MFU of a processor without a published
    /// peak, transports between CPUs, times of a run without steps, figures that a failed run did
    /// not reach. Transports between GPUs have an anomaly of their own.
    pub fn note_missing(&mut self) {
        self.anomalies.retain(|anomaly| !anomaly.text.starts_with(MISSING));
        let parts = [self.missing_matmul_rate(), self.missing_peak(), self.missing_machine()];
        let parts: Vec<_> = parts.into_iter().flatten().collect();
        if !parts.is_empty() {
            let text = format!("{MISSING}{}", parts.join("; "));
            self.anomalies.push(Anomaly { step: None, rank: None, text });
        }
    }

    fn missing_matmul_rate(&self) -> Option<String> {
        let is_missing = self.steps.is_some() && self.mfu_measured.is_none();
        is_missing.then(|| "mfu_measured (the measured attempt recorded no matmul rate)".to_owned())
    }

    fn missing_peak(&self) -> Option<String> {
        let name = &self.gpu()?.name;
        let is_missing = self.steps.is_some() && self.mfu_causal.is_none();
        is_missing
            .then(|| format!("mfu_causal and mfu_full (no published peak of {name} is known)"))
    }

    /// The GPU of rank 0.
    fn gpu(&self) -> Option<&DeviceProperties> {
        self.ranks.first()?.device.as_ref()
    }

    fn missing_machine(&self) -> Option<String> {
        let machine = serde_json::json!(self.environment.machine);
        let fields = machine.as_object()?.iter();
        let missing: Vec<_> = fields
            .filter(|(_, value)| value.is_null())
            .map(|(name, _)| format!("environment.{name}"))
            .collect();
        (!missing.is_empty())
            .then(|| format!("{} (not reported by the operating system)", missing.join(", ")))
    }
}
