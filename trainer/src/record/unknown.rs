//! Which figures of a record are `null` because they could not be known, told in one sentence.

use super::{Anomaly, Record};

/// How the sentence begins.
const UNKNOWN: &str = "null, because not known: ";

impl Record {
    /// Puts what could not be known, with the reasons, among the anomalies, in place of what was
    /// put there before.
    ///
    /// A figure that has nothing to say is no unknown one: transports of a single rank, times of a
    /// run without steps, what a run that failed did not come to.
    pub fn note_unknown(&mut self) {
        self.anomalies.retain(|anomaly| !anomaly.text.starts_with(UNKNOWN));
        let parts = [self.unknown_utilisation(), self.unknown_transports(), self.unknown_machine()];
        let parts: Vec<_> = parts.into_iter().flatten().collect();
        if !parts.is_empty() {
            let text = format!("{UNKNOWN}{}", parts.join("; "));
            self.anomalies.push(Anomaly { step: None, rank: None, text });
        }
    }

    fn unknown_utilisation(&self) -> Option<String> {
        self.steps.as_ref()?;
        let mut parts = Vec::new();
        if self.mfu_causal.is_none() || self.mfu_full.is_none() {
            parts.push("mfu_causal and mfu_full (this processor has no published peak)");
        }
        if self.mfu_measured.is_none() {
            parts.push("mfu_measured (the measured attempt left no matmul rate)");
        }
        (!parts.is_empty()).then(|| parts.join("; "))
    }

    fn unknown_transports(&self) -> Option<String> {
        let is_unknown = self.ranks.len() > 1 && self.transports.is_none();
        is_unknown.then(|| "transports (this version does not look)".to_owned())
    }

    fn unknown_machine(&self) -> Option<String> {
        let machine = serde_json::json!(self.environment.machine);
        let fields = machine.as_object()?.iter();
        let unknown = fields.filter(|(_, value)| value.is_null());
        let unknown: Vec<_> = unknown.map(|(name, _)| format!("environment.{name}")).collect();
        (!unknown.is_empty()).then(|| format!("{} (the system does not say)", unknown.join(", ")))
    }
}
