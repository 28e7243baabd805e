//! Whose slot another record takes: clock with a second chance. The policies that it is compared with (VeloANN, table 1)
//! are compiled where ablations are, and nowhere else.
const std = @import("std");
const base = @import("base");
const record_cache = @import("record_cache.zig");
const Cache = record_cache.Cache;
const Slot = record_cache.Slot;
const Word = record_cache.Word;
const Atomic = std.atomic.Value;

pub const Policy = enum {
    /// Clock with a second chance.
    clock,
    /// The least recently used of `lru_sample` slots; exact where there are no more than that.
    lru,
    /// In the order of insertion, but for slots that were pinned when their turn came.
    fifo,
    random,
    /// What came first stays.
    static,
};

/// Slots that one eviction looks at, at most: it then gives up, the record is not kept, and the next one goes on from
/// there. Bounds the time that a query can lose here.
const steps_max = 1024;
const lru_sample = 16;

pub const State = struct {
    /// The clock's hand, the order of `fifo`, the sequence of `random`.
    hand: Atomic(u32) align(std.atomic.cache_line) = .init(0),
    ablated: if (base.ablations) Ablated else void,

    const Ablated = struct {
        policy: Policy,
        seed: u64,
        /// Uses so far, for `lru`.
        tick: Atomic(u32) = .init(0),
    };

    pub fn init(policy: Policy, seed: u64) State {
        std.debug.assert(base.ablations or policy == .clock);
        return .{ .ablated = if (base.ablations) .{ .policy = policy, .seed = seed } };
    }
};

/// A record was inserted or found.
pub inline fn on_use(cache: *Cache, slot: *Slot) void {
    if (!base.ablations) return;
    const ablated = &cache.eviction.ablated;
    if (ablated.policy == .lru) slot.link.store(ablated.tick.fetchAdd(1, .monotonic), .monotonic);
}

/// A slot that held a record and is Locked by this thread now.
pub fn find(cache: *Cache) ?u32 {
    if (!base.ablations) return find_by_hand(cache, .second_chance);
    return switch (cache.eviction.ablated.policy) {
        .clock => find_by_hand(cache, .second_chance),
        .fifo => find_by_hand(cache, .none),
        .random => find_random(cache),
        .lru => find_oldest(cache),
        .static => null,
    };
}

fn find_by_hand(cache: *Cache, comptime chance: enum { none, second_chance }) ?u32 {
    const count = cache.slot_count();
    // Two turns: one to mark, one to take.
    for (0..@min(2 * @as(u64, count) + 1, steps_max)) |_| {
        const slot_index = cache.eviction.hand.fetchAdd(1, .monotonic) % count;
        const slot = &cache.slots[slot_index];
        const current: Word = @bitCast(slot.word.load(.monotonic));
        if (current.pin_count > 0) continue;
        switch (current.state) {
            .free, .locked => {},
            .occupied => if (chance == .none) {
                if (cache.lock(slot_index)) return slot_index;
            } else {
                const marked: Word = .{ .state = .marked };
                _ = slot.word.cmpxchgStrong(@bitCast(current), @bitCast(marked), .monotonic, .monotonic);
            },
            .marked => if (cache.lock(slot_index)) return slot_index,
        }
    }
    return null;
}

/// The next of a sequence of slots that the seed decides.
fn draw(mix: *std.Random.SplitMix64, count: u32) u32 {
    return @intCast((@as(u128, mix.next()) * count) >> 64);
}

fn find_random(cache: *Cache) ?u32 {
    const count = cache.slot_count();
    var mix = std.Random.SplitMix64.init(cache.eviction.ablated.seed +% cache.eviction.hand.fetchAdd(1, .monotonic));
    const start = draw(&mix, count);
    for (0..@min(count, steps_max)) |i| {
        const slot_index: u32 = @intCast((start + i) % count);
        if (cache.lock(slot_index)) return slot_index;
    }
    return null;
}

fn find_oldest(cache: *Cache) ?u32 {
    const count = cache.slot_count();
    const ablated = &cache.eviction.ablated;
    // The oldest may be taken, or pinned, by another thread meanwhile: then choose again, a few times.
    for (0..4) |_| {
        var mix = std.Random.SplitMix64.init(ablated.seed +% cache.eviction.hand.fetchAdd(1, .monotonic));
        const now = ablated.tick.load(.monotonic);
        var oldest: ?u32 = null;
        var oldest_age: u32 = 0;
        for (0..@min(count, lru_sample)) |i| {
            const slot_index: u32 = if (count <= lru_sample) @intCast(i) else draw(&mix, count);
            const slot = &cache.slots[slot_index];
            const current: Word = @bitCast(slot.word.load(.monotonic));
            if (current.pin_count > 0 or current.state == .free or current.state == .locked) continue;
            const age = now -% slot.link.load(.monotonic);
            if (oldest == null or age > oldest_age) {
                oldest = slot_index;
                oldest_age = age;
            }
        }
        if (cache.lock(oldest orelse return null)) return oldest;
    }
    return null;
}
