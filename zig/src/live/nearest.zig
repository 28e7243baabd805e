//! The nearest rows of the delta: a walk over those that are linked where it takes less, and a look at all others.
const std = @import("std");
const base = @import("base");
const links_room = @import("links.zig");
const link = @import("link.zig");
const scan = @import("scan.zig");
const Walk = @import("walk.zig").Walk;
const BitSet = base.BitSet;
const Hit = scan.Hit;
const Links = links_room.Links;

/// What measuring a row that lies anywhere takes, where measuring one row after the other takes 1.
const look_cost = 3;
/// Rows that a search links itself, of so many that wait. So it takes about twice as long as its own look at them, at most.
const linked_by_search = 8192;

pub const How = struct {
    k: usize,
    /// 1: every row is looked at.
    recall: f32,
    /// Candidates that a walk keeps at least. With as many as there are rows every row is looked at.
    list_size: u32 = 0,
    /// None, one set for all queries, or one each (null: all rows that live).
    passing: []const ?BitSet,
};

/// Writes k hits a query, nearest first; `counts` says how many there are, `looks` how many rows were measured.
pub fn search(allocator: std.mem.Allocator, view: anytype, queries: []const f32, how: How, hits: []Hit, counts: []u32, looks: []u32) error{OutOfMemory}!void {
    const shape: scan.Shape = view.shape;
    var arena = std.heap.ArenaAllocator.init(allocator);
    defer arena.deinit();
    const scratch = arena.allocator();
    const alive = try scratch.alloc(BitSet, @max(1, how.passing.len));
    const living = try scratch.alloc(u64, alive.len);
    for (alive, living, 0..) |*set, *count, i| {
        set.* = try BitSet.init(scratch, view.rows);
        const given = if (how.passing.len == 0) null else how.passing[i];
        for (set.words, view.dead.words, 0..) |*word, dead, w| word.* = ~dead & if (given) |one| one.words[w] else ~@as(u64, 0);
        const rest: u6 = @intCast(view.rows % 64);
        if (rest != 0) set.words[set.words.len - 1] &= (@as(u64, 1) << rest) - 1;
        count.* = set.count();
    }
    const asked = try scratch.alloc(scan.Asked, counts.len);
    for (asked, 0..) |*one, i| one.* = .{
        .point = .of(shape.metric, queries[i * shape.dim ..][0..shape.dim]),
        .passing = alive[if (alive.len == 1) 0 else i],
        .from = 0,
        .nearest = .{ .hits = hits[i * how.k ..][0..how.k] },
    };
    @memset(looks, 0);
    if (how.recall < 1) try walk_all(scratch, view, how, asked, living, looks);
    scan.scan(shape, view.records, view.rows, asked);
    for (asked, counts, looks, 0..) |*one, *count, *look, i| {
        count.* = @intCast(one.nearest.sorted().len);
        look.* += @intCast(if (one.from == 0) living[if (alive.len == 1) 0 else i] else passing_from(&one.passing, one.from));
    }
}

fn passing_from(set: *const BitSet, from: u32) u64 {
    var count: u64 = 0;
    for (from..set.len) |row| count += @intFromBool(set.contains(row));
    return count;
}

/// Of those for which it takes less. What they found is offered, and their scans begin behind it.
fn walk_all(scratch: std.mem.Allocator, view: anytype, how: How, asked: []scan.Asked, living: []const u64, looks: []u32) error{OutOfMemory}!void {
    const links: *const Links = &view.delta.links;
    const linked = links.linked.load(.acquire);
    const rows = @min(linked, view.rows);
    if (rows == 0) return;
    const list_size = @max(how.list_size, list_of(Links.float(&links.list_size), how.k, how.recall));
    if (list_size >= rows) return;
    const share = @as(f64, @floatFromInt(rows)) / @as(f64, @floatFromInt(view.rows));
    const expected = look_cost * @as(f64, Links.float(&links.looks)) * @as(f64, @floatFromInt(list_size));
    var walk: ?Walk = null;
    for (asked, looks, 0..) |*one, *look, i| {
        const passing = share * @as(f64, @floatFromInt(living[if (living.len == 1) 0 else i]));
        // As many more are met as do not pass.
        if (passing == 0 or expected * @as(f64, @floatFromInt(rows)) / passing > passing) continue;
        if (walk == null) walk = try .init(scratch, links, view.shape, rows, linked, list_size);
        const is_walked = try walk.?.offer_to(&one.nearest, one.point, list_size, one.passing, @intFromFloat(passing / look_cost));
        look.* = walk.?.looks;
        if (is_walked) one.from = rows;
    }
}

/// The list was measured for ten nearest. More of them take a longer one, and so does a higher recall.
fn list_of(measured: f32, k: usize, recall: f32) usize {
    const missed = @max(1 - recall, 1e-4);
    const longer = if (missed < missed_usual) missed_usual / missed else 1;
    const nearest: f32 = @floatFromInt(k);
    return @intFromFloat(measured * longer * @sqrt(@max(1, nearest / link.sample_k)) + nearest);
}

const missed_usual = 0.01;

/// Where much waits to be linked, as after a start from a full log, each search does a little of it.
pub fn link_some(allocator: std.mem.Allocator, view: anytype) void {
    const links: *Links = &view.delta.links;
    const waiting = view.rows -| links.linked.load(.monotonic);
    if (waiting > 2 * link.tail_rows) link.link(allocator, links, view.shape, view.rows, waiting / linked_by_search + 1);
}
