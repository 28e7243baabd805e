//! The order of pages. Filling leaves each page beside the one filled before it, which is good near by and wanders far
//! off; neighbor lists are stored as gaps of sorted ids, so their size depends on the far distances too. Recursive
//! bisection puts pages that share many edges into the same half, then the same quarter, and so on, and leaves what is
//! on a page alone.
const std = @import("std");
const base = @import("base");

const types = @import("types.zig");
const Graph = types.Graph;
const Placement = @import("types.zig").Placement;

/// Of a page's edges only those to the pages it shares most with count.
const links_max = 32;
/// Rounds of exchanging pages between two halves.
const rounds_max = 20;
/// Ranges of at most this many pages keep the order in which they were filled.
const range_min = 4;
/// The weight of an edge that leaves the range, toward the half on its side.
const outside_weight = 0.25;

/// Reorders the pages of a placement.
pub fn arrange(allocator: std.mem.Allocator, graph: *const Graph, placement: *Placement, cancel: ?*const std.atomic.Value(bool)) error{ Canceled, OutOfMemory }!void {
    const pages = placement.page_first.len;
    if (pages <= range_min) return;
    var job = try Job.init(allocator, pages);
    defer job.deinit(allocator);
    try job.count_links(allocator, graph, placement, cancel);

    // Ranges wait on a stack; halving leaves at most one waiting sibling a level.
    var stack: [64]Range = undefined;
    var height: usize = 1;
    stack[0] = .{ .from = 0, .to = @intCast(pages) };
    while (height > 0) {
        height -= 1;
        const range = stack[height];
        if (range.to - range.from <= range_min) continue;
        const middle = range.from + (range.to - range.from) / 2;
        for (0..rounds_max) |_| {
            if (cancel) |flag| if (flag.load(.monotonic)) return error.Canceled;
            if (!job.exchange(range, middle)) break;
        }
        stack[height] = .{ .from = middle, .to = range.to };
        stack[height + 1] = .{ .from = range.from, .to = middle };
        height += 2;
    }
    try job.apply(allocator, placement);
}

const Range = struct { from: u32, to: u32 };

const Link = struct {
    page: u32,
    edges: u32,

    fn more(_: void, a: Link, b: Link) bool {
        return if (a.edges != b.edges) a.edges > b.edges else a.page < b.page;
    }
};

const Gain = struct {
    gain: f32,
    page: u32,

    fn more(_: void, a: Gain, b: Gain) bool {
        return if (a.gain != b.gain) a.gain > b.gain else a.page < b.page;
    }
};

const Job = struct {
    /// Page at each position, and position of each page.
    sequence: []u32,
    position: []u32,
    links: []Link,
    link_counts: []u8,
    gains: []Gain,

    fn init(allocator: std.mem.Allocator, pages: usize) error{OutOfMemory}!Job {
        const sequence = try base.alloc_untouched(allocator, u32, pages);
        errdefer base.free_untouched(allocator, sequence);
        const position = try base.alloc_untouched(allocator, u32, pages);
        errdefer base.free_untouched(allocator, position);
        const links = try base.alloc_untouched(allocator, Link, pages * links_max);
        errdefer base.free_untouched(allocator, links);
        const link_counts = try base.alloc_untouched(allocator, u8, pages);
        errdefer base.free_untouched(allocator, link_counts);
        for (sequence, position, 0..) |*page, *place, i| {
            page.* = @intCast(i);
            place.* = @intCast(i);
        }
        return .{ .sequence = sequence, .position = position, .links = links, .link_counts = link_counts, .gains = try base.alloc_untouched(allocator, Gain, pages) };
    }

    fn deinit(self: *Job, allocator: std.mem.Allocator) void {
        base.free_untouched(allocator, self.sequence);
        base.free_untouched(allocator, self.position);
        base.free_untouched(allocator, self.links);
        base.free_untouched(allocator, self.link_counts);
        base.free_untouched(allocator, self.gains);
    }

    fn count_links(self: *Job, allocator: std.mem.Allocator, graph: *const Graph, placement: *const Placement, cancel: ?*const std.atomic.Value(bool)) error{ Canceled, OutOfMemory }!void {
        const page_of = try base.alloc_untouched(allocator, u32, graph.n);
        defer base.free_untouched(allocator, page_of);
        for (0..self.sequence.len) |index| {
            const page = placement.page(index);
            for (placement.order[page.from..page.to]) |vertex| page_of[vertex] = @intCast(index);
        }
        const counts = try allocator.alloc(u32, self.sequence.len);
        defer allocator.free(counts);
        @memset(counts, 0);
        var met: std.ArrayList(Link) = .empty;
        defer met.deinit(allocator);
        for (0..self.sequence.len) |index| {
            if (cancel) |flag| if (flag.load(.monotonic)) return error.Canceled;
            met.clearRetainingCapacity();
            const page = placement.page(index);
            for (placement.order[page.from..page.to]) |vertex| for (graph.list(vertex)) |neighbor| {
                const other = page_of[neighbor];
                if (other == index) continue;
                if (counts[other] == 0) try met.append(allocator, .{ .page = other, .edges = 0 });
                counts[other] += 1;
            };
            for (met.items) |*link| {
                link.edges = counts[link.page];
                counts[link.page] = 0;
            }
            std.sort.pdq(Link, met.items, {}, Link.more);
            const kept = @min(met.items.len, links_max);
            @memcpy(self.links[index * links_max ..][0..kept], met.items[0..kept]);
            self.link_counts[index] = @intCast(kept);
        }
    }

    /// Exchanges pages between the two halves of a range, those first that gain most. False if none gained.
    fn exchange(self: *Job, range: Range, middle: u32) bool {
        for (self.sequence[range.from..range.to], self.gains[range.from..range.to], range.from..) |page, *gain, place| {
            var right: f32 = 0;
            for (self.links[page * links_max ..][0..self.link_counts[page]]) |link| {
                const at = self.position[link.page];
                const edges: f32 = @floatFromInt(link.edges);
                const inside = at >= range.from and at < range.to;
                const pull = if (inside) edges else edges * outside_weight;
                right += if (at >= middle) pull else -pull;
            }
            gain.* = .{ .gain = if (place < middle) right else -right, .page = page };
        }
        const left = self.gains[range.from..middle];
        const right = self.gains[middle..range.to];
        std.sort.pdq(Gain, left, {}, Gain.more);
        std.sort.pdq(Gain, right, {}, Gain.more);
        var exchanged = false;
        for (left[0..@min(left.len, right.len)], right[0..@min(left.len, right.len)]) |a, b| {
            if (a.gain + b.gain <= 0) break;
            std.mem.swap(u32, &self.position[a.page], &self.position[b.page]);
            self.sequence[self.position[a.page]] = a.page;
            self.sequence[self.position[b.page]] = b.page;
            exchanged = true;
        }
        return exchanged;
    }

    fn apply(self: *const Job, allocator: std.mem.Allocator, placement: *Placement) error{OutOfMemory}!void {
        const order = try base.alloc_untouched(allocator, u32, placement.order.len);
        errdefer base.free_untouched(allocator, order);
        const page_first = try base.alloc_untouched(allocator, u32, placement.page_first.len);
        var at: u32 = 0;
        for (self.sequence, page_first) |index, *first| {
            const page = placement.page(index);
            first.* = at;
            @memcpy(order[at..][0 .. page.to - page.from], placement.order[page.from..page.to]);
            at += page.to - page.from;
        }
        placement.deinit(allocator);
        placement.* = .{ .order = order, .page_first = page_first };
    }
};
