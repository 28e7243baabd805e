//! What goes wrong in a simulated device, drawn from a seed.
//!
//! A set of faults is a 32-bit mask (`velo_open_options.simulated_faults`):
//!
//!     bit  mask         name         what happens                                                       the caller sees
//!     0    0x00000001   late         some reads take 10 to 100 times as long                            nothing but time
//!     1    0x00000002   reordered    reads end in another order than they were submitted                another order
//!     2    0x00000004   short        some attempts bring only their first part                          nothing: continued
//!     3    0x00000008   eio_once     some reads fail with EIO; the same read again succeeds             `.io`, EIO
//!     4    0x00000010   eio_forever  some pages always fail with EIO                                    `.io`, EIO
//!     5    0x00000020   again        some attempts are refused with EAGAIN or EINTR, up to three times  nothing: repeated
//!     6    0x00000040   bit_flip     in some pages one bit is wrong, always the same one                `.ok`, wrong bytes
//!     7    0x00000080   wrong_page   some reads bring another page's bytes; the same read again is fine `.ok`, wrong bytes
//!     31   0x80000000   swarm        the seed turns a third of the faults above off and scales the
//!                                    rates of the others from an eighth to eightfold
//!
//! Which pages are bad for good (4, 6) depends on seed and page alone, so that devices with one seed agree. Which reads
//! meet the passing faults depends on the device's own sequence.
const std = @import("std");
const base = @import("base");

pub const Fault = enum(u5) {
    late = 0,
    reordered = 1,
    short = 2,
    eio_once = 3,
    eio_forever = 4,
    again = 5,
    bit_flip = 6,
    wrong_page = 7,

    pub fn mask(fault: Fault) u32 {
        return @as(u32, 1) << @intFromEnum(fault);
    }
};

pub const fault_count = std.enums.values(Fault).len;
pub const all: u32 = (1 << fault_count) - 1;
pub const swarm: u32 = 1 << 31;

/// Faults are bound to pieces of this size, whatever the sizes of the reads.
pub const page_size = 4096;

/// Chances out of `rate_one`, without swarm.
const rate_one = 1024;
const rates_default = std.enums.directEnumArray(Fault, u32, 0, .{
    .late = 64,
    .reordered = rate_one,
    .short = 96,
    .eio_once = 48,
    .eio_forever = 16,
    .again = 96,
    .bit_flip = 16,
    .wrong_page = 48,
});

pub const Plan = struct {
    seed: u64,
    /// 0 where a fault is off.
    rates: [fault_count]u32 = @splat(0),

    pub fn init(seed: u64, set: u32) Plan {
        var plan: Plan = .{ .seed = seed };
        var prng = base.Prng.init(seed ^ 0x5a17_fa17);
        for (std.enums.values(Fault)) |fault| {
            // Drawn for every fault, so that adding one to the set does not change the others.
            const off = prng.below(3) == 0;
            const scale = prng.below(7);
            if (set & fault.mask() == 0) continue;
            var rate = rates_default[@intFromEnum(fault)];
            if (set & swarm != 0) {
                if (off) continue;
                rate = @max(1, rate * (@as(u32, 1) << @intCast(scale)) / 8);
            }
            // No fault hits more than half of all reads, or a run would see nothing else.
            plan.rates[@intFromEnum(fault)] = if (fault == .reordered) rate_one else @min(rate, rate_one / 2);
        }
        return plan;
    }

    pub fn on(plan: *const Plan, fault: Fault) bool {
        return plan.rates[@intFromEnum(fault)] > 0;
    }

    /// Whether a passing fault happens now.
    pub fn strikes(plan: *const Plan, fault: Fault, prng: *base.Prng) bool {
        if (!plan.on(fault)) return false;
        return prng.below(rate_one) < plan.rates[@intFromEnum(fault)];
    }

    /// Whether a lasting fault sits in this page; then a number that is always the same for it.
    pub fn sits_in(plan: *const Plan, fault: Fault, page: u64) ?u64 {
        if (!plan.on(fault)) return null;
        var mix = std.Random.SplitMix64.init(plan.seed +% page *% 0x9e3779b97f4a7c15 +% (@as(u64, @intFromEnum(fault)) << 56));
        if (mix.next() % rate_one >= plan.rates[@intFromEnum(fault)]) return null;
        return mix.next();
    }
};

test "the rates follow the set, and swarm follows the seed" {
    const none = Plan.init(1, 0);
    const one = Plan.init(1, Fault.short.mask());
    for (std.enums.values(Fault)) |fault| {
        try std.testing.expect(!none.on(fault));
        try std.testing.expectEqual(fault == .short, one.on(fault));
    }
    var off_counts: [fault_count]u32 = @splat(0);
    for (0..300) |seed| {
        const plan = Plan.init(seed, all | swarm);
        for (std.enums.values(Fault)) |fault| off_counts[@intFromEnum(fault)] += @intFromBool(!plan.on(fault));
    }
    for (off_counts) |count| {
        try std.testing.expect(count > 50);
        try std.testing.expect(count < 150);
    }
}

test "lasting faults sit in the promised share of pages" {
    const plan = Plan.init(5, Fault.bit_flip.mask());
    var count: u32 = 0;
    for (0..100_000) |page| {
        const number = plan.sits_in(.bit_flip, page) orelse continue;
        try std.testing.expectEqual(number, plan.sits_in(.bit_flip, page).?);
        count += 1;
    }
    const expected = 100_000 * 16 / 1024;
    try std.testing.expect(count > expected * 8 / 10);
    try std.testing.expect(count < expected * 12 / 10);
}
