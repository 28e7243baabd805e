//! velo_delta: rows of live data that no part holds yet, as a search over parts takes them along.
const std = @import("std");
const base = @import("base");
const index = @import("index");
const live_room = @import("live");
const search = @import("search");
const common = @import("common.zig");
const nearest = live_room.nearest;
const report = common.report;

/// As velo_delta.
pub const Delta = extern struct {
    struct_size: u32,
    mask_count: u32,
    view: ?*const live_room.View,
    first: i64,
    masks: ?[*]const ?[*]const u8,
    list_size: u32,
    recall: f32,

    fn checked(self: *const Delta, query_count: u64) error{Reported}!*const live_room.View {
        const view = try common.need("view", self.view);
        if (!(self.recall > 0 and self.recall <= 1)) return report(.invalid_argument, .{ .argument = "recall" }, "recall is above 0 and at most 1, not {d}", .{self.recall});
        if (self.mask_count > 1 and self.mask_count != query_count) return report(.invalid_argument, .{ .argument = "mask_count" }, "{d} masks for {d} queries", .{ self.mask_count, query_count });
        return view;
    }

    /// What it says of k nearest; the sets of rows that pass are made in `room`.
    fn how(self: *const Delta, room: std.mem.Allocator, view: *const live_room.View, k: usize) error{OutOfMemory}!nearest.How {
        const sets = try room.alloc(?base.BitSet, if (self.masks == null) 0 else self.mask_count);
        for (sets, 0..) |*set, i| {
            set.* = null;
            const bits = self.masks.?[i] orelse continue;
            var made = try base.BitSet.init(room, view.rows);
            for (0..view.rows) |row| {
                if (bits[row / 8] >> @intCast(row % 8) & 1 == 1) made.insert(row);
            }
            set.* = made;
        }
        return .{ .k = k, .recall = self.recall, .list_size = self.list_size, .passing = sets };
    }
};

/// What a job asks of a delta. It stays where it is, as the job does.
pub const Asked = struct {
    of_job: search.job.Delta,
    question: nearest.Question,
    arena: std.heap.ArenaAllocator,
    /// Of all queries.
    values: []f32,

    /// The job has its queries; as many threads as given answer it at once.
    pub fn init(self: *Asked, theirs: *const Delta, job: *const search.Job, threads: u32) common.Failure!void {
        const given = try common.read(Delta, "delta", theirs);
        const view = try given.checked(job.count);
        const reader = job.parts[0].part.shared.reader;
        const dim = reader.header.dim_in;
        if (view.shape.dim != dim or !std.mem.eql(u8, @tagName(view.shape.metric), @tagName(reader.metric)))
            return report(.invalid_argument, .{ .argument = "delta" }, "a delta and parts that are searched together have one metric and as many dimensions", .{});
        self.arena = .init(common.allocator);
        errdefer self.arena.deinit();
        const room = self.arena.allocator();
        self.values = try room.alloc(f32, @as(usize, @intCast(job.count)) * dim);
        index.space.convert(job.dtype, job.queries, self.values);
        try self.question.init(common.allocator, view, try given.how(room, view, job.k()), @intCast(@min(threads, job.count)));
        self.of_job = .{ .context = self, .first = given.first, .nearest = answer };
    }

    pub fn deinit(self: *Asked) void {
        self.question.deinit();
        self.arena.deinit();
    }

    fn answer(context: *anyopaque, query: u64, within: f32, hits: []search.job.Delta.Hit) search.job.Delta.Found {
        const self: *Asked = @ptrCast(@alignCast(context));
        const dim = self.question.view.shape.dim;
        const at: usize = @intCast(query);
        const found = self.question.answer(at, self.values[at * dim ..][0..dim], within, @ptrCast(hits));
        if (query == 0 and self.question.how.recall < 1) nearest.link_some(common.allocator, self.question.view);
        return .{ .count = found.count, .measured = found.looks };
    }
};

/// Of the delta alone: rows and distances with k entries a query.
export fn velo_live_view_search(delta: ?*const Delta, queries: ?[*]const f32, query_count: u32, k: u32, rows_out: ?[*]i64, distances_out: ?[*]f32, counts_out: ?[*]u32, looks_out: ?[*]u32) i32 {
    return common.status_of_call(search_alone(delta, queries, query_count, k, rows_out, distances_out, counts_out, looks_out));
}

fn search_alone(delta: ?*const Delta, queries: ?[*]const f32, query_count: u32, k: u32, rows_out: ?[*]i64, distances_out: ?[*]f32, counts_out: ?[*]u32, looks_out: ?[*]u32) common.Failure!void {
    const given = try common.read(Delta, "delta", delta);
    const view = try given.checked(query_count);
    if (query_count == 0 or k == 0) return;
    const values = try common.need("queries", queries);
    const rows = try common.need("rows_out", rows_out);
    const distances = try common.need("distances_out", distances_out);
    const counts = try common.need("counts_out", counts_out);
    const looks = try common.need("looks_out", looks_out);
    var arena = std.heap.ArenaAllocator.init(common.allocator);
    defer arena.deinit();
    const room = arena.allocator();
    const hits = try room.alloc(live_room.scan.Hit, @as(usize, query_count) * k);
    try nearest.search(common.allocator, view, values[0 .. @as(usize, query_count) * view.shape.dim], try given.how(room, view, k), hits, counts[0..query_count], looks[0..query_count]);
    for (0..query_count) |q| for (0..k) |i| {
        const at = q * k + i;
        const is_hit = i < counts[q];
        rows[at] = if (is_hit) hits[at].row else -1;
        distances[at] = if (is_hit) hits[at].distance else std.math.inf(f32);
    };
    if (given.recall < 1) nearest.link_some(common.allocator, view);
}
