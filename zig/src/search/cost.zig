//! The cost of a query: one struct from the search that counts to the caller that reads. A counter is added here, in
//! velo_search_out of zig/velo.h, and nowhere between.
const std = @import("std");

pub const Cost = struct {
    /// Reads of the device that this query asked for.
    reads: u32 = 0,
    /// Rounds of reads. Each depends on the results of the previous one.
    rounds: u32 = 0,
    bytes_read: u64 = 0,
    cache_hits: u32 = 0,
    /// Distances estimated from codes in memory.
    estimates: u32 = 0,
    /// Vertices whose links were followed.
    expanded: u32 = 0,
    /// Of them, those that failed the filter.
    filtered: u32 = 0,
    /// From the moment a worker took the query up to its end.
    latency_us: u64 = 0,
    /// Records of pages scored with their full code.
    records_scored: u32 = 0,
    /// Of them, those that ended in the list; counted where it is asked for.
    records_used: u32 = 0,
    /// Pages that another query's read brought; they are not among `reads`.
    shared_reads: u32 = 0,
    /// 1 where the query lies outside the rows: no calibration knows how such queries fare.
    outside: u32 = 0,

    /// Adds the cost of a search in another segment for the same query. Rounds of segments are the same rounds, and outside of all rows
    /// is who is outside of those of each segment.
    pub fn add(self: *Cost, other: *const Cost) void {
        const rounds = self.rounds;
        const outside = @min(self.outside, other.outside);
        inline for (std.meta.fields(Cost)) |field| @field(self, field.name) += @field(other, field.name);
        self.rounds = rounds;
        self.outside = outside;
    }
};

/// For each counter an array with an entry a query, or null where it is not wanted.
pub const Costs = blk: {
    const fields = std.meta.fields(Cost);
    var arrays: [fields.len]std.builtin.Type.StructField = undefined;
    for (fields, &arrays) |field, *array| {
        const Pointer = ?[*]field.type;
        const none: Pointer = null;
        array.* = .{ .name = field.name, .type = Pointer, .default_value_ptr = @ptrCast(&none), .is_comptime = false, .alignment = @alignOf(Pointer) };
    }
    break :blk @Type(.{ .@"struct" = .{ .layout = .auto, .fields = &arrays, .decls = &.{}, .is_tuple = false } });
};

/// Copies the fields of the same name: between `Costs` and any struct that has an array for each counter.
pub fn arrays_of(from: anytype) Costs {
    var costs: Costs = .{};
    inline for (std.meta.fields(Costs)) |field| @field(costs, field.name) = @field(from, field.name);
    return costs;
}

pub fn write(costs: *const Costs, query: usize, cost: *const Cost) void {
    inline for (std.meta.fields(Cost)) |field| {
        if (@field(costs, field.name)) |array| array[query] = @field(cost, field.name);
    }
}

test "each counter goes to its own array, and what is not wanted goes nowhere" {
    var reads: [2]u32 = @splat(0);
    var latencies: [2]u64 = @splat(0);
    const costs: Costs = .{ .reads = &reads, .latency_us = &latencies };
    try std.testing.expectEqual(costs, arrays_of(costs));
    write(&costs, 1, &.{ .reads = 7, .rounds = 8, .latency_us = 9 });
    try std.testing.expectEqual([2]u32{ 0, 7 }, reads);
    try std.testing.expectEqual([2]u64{ 0, 9 }, latencies);
}
