//! Parts of attention.

use super::{Builder, CropError, Region, Span};
use crate::attention::Attention;
use crate::graph::Value;
use crate::op::Op;

impl Builder<'_> {
    /// Heads, queries and columns of the values. Heads that share keys stay together unless only one group is needed.
    pub(super) fn attention(
        &mut self,
        v: Value,
        region: &Region,
        attention: &Attention,
    ) -> Result<Value, CropError> {
        let operands = self.of.node(v.node).operands.clone();
        let (q, k) = (self.shape(operands[0])?, self.shape(operands[1])?);
        let ([heads, queries, depth], [groups, keys, _]) = (&q[..], &k[..]) else {
            return self.all(v, region);
        };
        let [Some(asked), Some(rows), Some(columns)] = [0, 1, 2].map(|axis| region[axis].range()) else {
            return Err(CropError::Unsupported("chosen rows"));
        };
        let shared = heads / groups.max(&1);
        if asked.is_empty() || rows.is_empty() || shared == 0 {
            return self.all(v, region);
        }
        let chosen = asked.start / shared..(asked.end - 1) / shared + 1;
        let taken = if chosen.len() == 1 { asked } else { chosen.start * shared..chosen.end * shared };
        // The position of a query among the keys counts from their end.
        let (rows, seen) = match (attention.causal, attention.window) {
            (true, _) if keys + rows.end > *queries => (rows.clone(), keys + rows.end - queries),
            (false, None) => (rows, *keys),
            (true | false, _) => (0..*queries, *keys),
        };
        let [taken, chosen, rows] = [taken, chosen, rows].map(Span::from);
        let seen = Span::all(seen);
        let mut parts = vec![
            self.value(operands[0], &vec![taken.clone(), rows.clone(), Span::all(*depth)])?,
            self.value(operands[1], &vec![chosen.clone(), seen.clone(), Span::all(*depth)])?,
            self.value(operands[2], &vec![chosen, seen.clone(), columns.into()])?,
        ];
        let [bias, sinks] = attention.bias_and_sinks(&operands).map(|value| value.copied());
        if let Some(bias) = bias {
            let shape = self.shape(bias)?;
            let axes = shape.iter().zip([&taken, &rows, &seen]);
            let part = axes.map(|(n, span)| if *n == 1 { Span::all(1) } else { span.clone() }).collect();
            parts.push(self.value(bias, &part)?);
        }
        if let Some(sinks) = sinks {
            parts.push(self.value(sinks, &vec![taken.clone()])?);
        }
        let made = self.graph.add(Op::Attention(*attention), &parts)?;
        self.narrow(made, &vec![taken, rows, region[2].clone()], region)
    }
}
