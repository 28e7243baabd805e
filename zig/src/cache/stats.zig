//! Counters that many threads add to without sharing a cache line.
const std = @import("std");
const Atomic = std.atomic.Value;

pub const Stats = struct {
    hits: u64 = 0,
    /// Lookups that found somebody reading the record.
    in_flight: u64 = 0,
    misses: u64 = 0,
    inserts: u64 = 0,
    /// Records that found no slot.
    refused: u64 = 0,
    evictions: u64 = 0,
};

pub const Field = std.meta.FieldEnum(Stats);
const field_count = std.meta.fields(Stats).len;
const stripe_count = 16;

const Stripe = struct {
    values: [field_count]Atomic(u64) align(std.atomic.cache_line) = @splat(.init(0)),
};

/// The stripe of this thread: threads are numbered as they come, so up to `stripe_count` of them share nothing.
threadlocal var stripe_of_thread: u32 = std.math.maxInt(u32);
var threads_seen: Atomic(u32) = .init(0);

pub const Counters = struct {
    stripes: [stripe_count]Stripe = @splat(.{}),

    pub fn add(counters: *Counters, field: Field) void {
        if (stripe_of_thread == std.math.maxInt(u32)) stripe_of_thread = threads_seen.fetchAdd(1, .monotonic) % stripe_count;
        _ = counters.stripes[stripe_of_thread].values[@intFromEnum(field)].fetchAdd(1, .monotonic);
    }

    pub fn sum(counters: *const Counters) Stats {
        var total: Stats = .{};
        for (&counters.stripes) |*stripe| {
            inline for (std.meta.fields(Stats), 0..) |field, i| @field(total, field.name) += stripe.values[i].load(.monotonic);
        }
        return total;
    }
};
