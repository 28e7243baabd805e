//! Lists of a former index, for a graph that goes on from them (graph, initial.zig). Of the former index nothing is
//! needed but its folder; its lists are read once, page after page, or from the links for memory where pages hold none.
const std = @import("std");
const base = @import("base");
const layout = @import("layout");
const quant = @import("quant");
const graph = @import("graph");
const diagnostics = @import("diagnostic.zig");
const options_room = @import("options.zig");
const reader = @import("reader.zig");
const files = @import("files.zig");
const PageWalk = @import("reader.zig").PageWalk;
const Neighbors = @import("writer.zig").Neighbors;
const Diagnostic = diagnostics.Diagnostic;
const Error = diagnostics.Error;

pub const WarmStart = struct {
    path: []u8,
    /// The row that each vertex of the former index has now; `gone` where it has none.
    rows: []u32,
    removed_count: u32,
    /// Its pages hold its lists; else its links for memory do.
    in_pages: bool = true,
    /// The lists are long enough for a merge to extend the graph.
    has_lists: bool = true,

    pub const removed = std.math.maxInt(u32);
    /// A merge extends graphs with at least one `lists_share`-th of the usual links: vertices that stay keep their lists.
    const lists_share = 2;

    pub fn init(allocator: std.mem.Allocator, path: []const u8, rows: []const u32, options: *const options_room.Options, diagnostic: *Diagnostic) Error!WarmStart {
        var taken = try base.BitSet.init(allocator, @intCast(options.n));
        defer taken.deinit(allocator);
        var removed_count: u32 = 0;
        for (rows, 0..) |row, vertex| {
            if (row == removed) {
                removed_count += 1;
            } else if (row >= options.n or !taken.insert_new(row)) {
                diagnostic.argument = "former_rows";
                diagnostic.say("vertex {d} of the former index is row {d} of {d}, or that row is another's, too", .{ vertex, row, options.n });
                return error.InvalidArgument;
            }
        }
        var warm_start: WarmStart = .{ .path = &.{}, .rows = &.{}, .removed_count = removed_count };
        try warm_start.look_for_lists(allocator, path, diagnostic);
        warm_start.path = try allocator.dupe(u8, path);
        errdefer allocator.free(warm_start.path);
        warm_start.rows = try allocator.dupe(u32, rows);
        return warm_start;
    }

    pub fn deinit(self: *WarmStart, allocator: std.mem.Allocator) void {
        allocator.free(self.path);
        allocator.free(self.rows);
    }

    /// Memory while a graph is built, beside the build itself.
    pub fn memory_bytes(self: *const WarmStart, degree: u32) u64 {
        return @as(u64, self.removed_count) * (4 * degree + 2) + 8 * @as(u64, self.rows.len);
    }

    /// Memory of its codes while its lists are read, before points are loaded.
    pub fn codes_bytes(self: *const WarmStart, params: quant.CodeParams) u64 {
        return if (self.in_pages) 0 else self.rows.len * (params.upper_bytes() + @sizeOf(u64));
    }

    /// Memory beside them to go on partition by partition; null where that is not worth it, or impossible.
    pub fn beside(self: *const WarmStart, degree: u32) ?options_room.Beside {
        const stayed = self.rows.len - self.removed_count;
        if (!self.in_pages or self.removed_count > stayed) return null;
        // A partition's guests lie on pages with few rows of its own, so it meets more than its share of the deleted rows.
        const removed_per_member = 2 * @as(f64, @floatFromInt(self.removed_count)) / @as(f64, @floatFromInt(stayed));
        return .{
            .bytes = 9 * @as(u64, self.rows.len),
            .removed_per_member = removed_per_member,
            .member_bytes = @intFromFloat(@ceil(removed_per_member * @as(f64, @floatFromInt(4 * degree + 2)))),
        };
    }

    /// Its lists as a new graph begins with them.
    pub fn begin(self: *const WarmStart, allocator: std.mem.Allocator, options: *const options_room.Options, diagnostic: *Diagnostic) Error!graph.InitialGraph {
        var opened = try self.open(allocator, options, diagnostic);
        defer opened.deinit();
        const numbers = try base.alloc_untouched(allocator, u32, self.rows.len);
        defer base.free_untouched(allocator, numbers);
        var removed_seen: u32 = 0;
        for (self.rows, numbers) |row, *number| {
            number.* = if (row != removed) row else removed_seen | graph.InitialGraph.removed_mark;
            removed_seen += @intFromBool(row == removed);
        }
        var initial = try graph.InitialGraph.init(allocator, @intCast(options.n), self.removed_count, options.degree);
        errdefer initial.deinit(allocator);
        var ids: [layout.adjacency.neighbors_max]u32 = undefined;
        if (opened.links) |*links| {
            for (0..opened.n()) |vertex| {
                const list = links.decode(@intCast(vertex), &ids) catch {
                    diagnostic.in_file(files.file_links, "the links of vertex {d} are damaged", .{vertex});
                    return error.Corrupt;
                };
                put(&initial, numbers, @intCast(vertex), list);
            }
            return initial;
        }
        var walk = try PageWalk.init(allocator, &opened);
        defer walk.deinit();
        while (try walk.next(diagnostic)) |view| {
            for (0..view.record_count) |record|
                put(&initial, numbers, view.first_vertex + @as(u32, @intCast(record)), try walk.list(&view, @intCast(record), &ids, diagnostic));
        }
        return initial;
    }

    /// The rows in the order in which the former index has them, each new one behind the first of its neighbors that was
    /// there; those that have none come last.
    pub fn order(self: *const WarmStart, allocator: std.mem.Allocator, n: u32, neighbors: Neighbors, diagnostic: *Diagnostic) Error![]u32 {
        const new = std.math.maxInt(u32);
        const last: u32 = @intCast(self.rows.len);
        const anchors = try base.alloc_untouched(allocator, u32, n);
        defer base.free_untouched(allocator, anchors);
        @memset(anchors, new);
        for (self.rows, 0..) |row, vertex| if (row != removed) {
            anchors[row] = @intCast(vertex);
        };
        // First how many rows lie at each vertex, then where the next of them goes.
        const next = try base.alloc_untouched(allocator, u32, last + 1);
        defer base.free_untouched(allocator, next);
        for (self.rows, next[0..last]) |row, *count| count.* = @intFromBool(row != removed);
        next[last] = 0;
        const behind = try base.alloc_untouched(allocator, u32, n);
        defer base.free_untouched(allocator, behind);
        for (anchors, behind, 0..) |anchor, *at, row| {
            at.* = anchor;
            if (anchor != new) continue;
            at.* = for (try neighbors.of_row(@intCast(row), diagnostic)) |neighbor| {
                if (anchors[neighbor] != new) break anchors[neighbor];
            } else last;
            next[at.*] += 1;
        }
        var sum: u32 = 0;
        for (next) |*count| {
            const first = sum;
            sum += count.*;
            count.* = first;
        }
        const rows = try base.alloc_untouched(allocator, u32, n);
        for ([_]bool{ false, true }) |is_new| {
            for (anchors, behind, 0..) |anchor, at, row| {
                if ((anchor == new) != is_new) continue;
                rows[next[at]] = @intCast(row);
                next[at] += 1;
            }
        }
        std.debug.assert(sum == n);
        return rows;
    }

    fn look_for_lists(self: *WarmStart, allocator: std.mem.Allocator, path: []const u8, diagnostic: *Diagnostic) Error!void {
        var dir = std.fs.cwd().openDir(path, .{}) catch |err| return files.open_folder_error(path, err, diagnostic);
        defer dir.close();
        var parsed = try files.read_manifest(allocator, dir, path, diagnostic);
        defer parsed.deinit();
        const m = &parsed.value;
        self.in_pages = m.page_links;
        self.has_lists = m.page_links or lists_share * m.links_built >= @min(options_room.links_usual, m.degree);
    }

    fn open(self: *const WarmStart, allocator: std.mem.Allocator, options: *const options_room.Options, diagnostic: *Diagnostic) Error!reader.Reader {
        var opened = try reader.Reader.open(allocator, self.path, .{ .links = if (self.in_pages) .on_disk else .in_memory, .codes = !self.in_pages }, diagnostic);
        errdefer opened.deinit();
        const m = opened.manifest();
        if (m.n == self.rows.len and m.dim == options.dim and opened.metric == options.metric and m.degree <= options.degree) return opened;
        diagnostic.argument = "former";
        diagnostic.say("{s} is no former index of this one: it has {d} rows of {d} dimensions, {t}, degree {d}", .{ self.path, m.n, m.dim, opened.metric, m.degree });
        return error.InvalidArgument;
    }

    /// Neighbors without a number are left out.
    fn put(initial: *graph.InitialGraph, numbers: []const u32, vertex: u32, list: []const u32) void {
        const number = numbers[vertex];
        const target = if (number & graph.InitialGraph.removed_mark == 0) &initial.graph else &initial.removed;
        const at = number & ~graph.InitialGraph.removed_mark;
        const row = target.row(at);
        var len: u16 = 0;
        for (list) |neighbor| if (numbers[neighbor] != elsewhere) {
            row[len] = numbers[neighbor];
            len += 1;
        };
        target.degrees[at] = len;
    }
};

/// Of a vertex that the graph at hand has no place for.
const elsewhere = std.math.maxInt(u32);

/// The lists of a former index as the graphs of partitions begin with them, one partition after another: of each list what
/// stays within. Pages without a row of the partition are not read; since pages hold what lies together, a page is read for
/// few partitions.
pub const Partly = struct {
    warm_start: *const WarmStart,
    opened: reader.Reader,
    /// Of each vertex of the former index, as in `graph.Begun`.
    numbers: []u32,

    pub fn init(warm_start: *const WarmStart, allocator: std.mem.Allocator, options: *const options_room.Options, diagnostic: *Diagnostic) Error!Partly {
        var opened = try warm_start.open(allocator, options, diagnostic);
        errdefer opened.deinit();
        std.debug.assert(opened.links == null);
        return .{ .warm_start = warm_start, .opened = opened, .numbers = try base.alloc_untouched(allocator, u32, warm_start.rows.len) };
    }

    pub fn deinit(self: *Partly) void {
        base.free_untouched(self.opened.allocator, self.numbers);
        self.opened.deinit();
    }

    /// `members` are rows, ascending. Of those that are gone at most `gone_max` are kept until lists are mended; they are
    /// looked for on the pages of members.
    pub fn begin(self: *Partly, members: []const u32, removed_max: u64, degree: u32, diagnostic: *Diagnostic) Error!graph.InitialGraph {
        const allocator = self.opened.allocator;
        var places: Places = .{ .members = members };
        for (self.warm_start.rows, self.numbers) |row, *number| number.* = if (row == WarmStart.removed) elsewhere else places.of(row);
        const removed_count = self.number_gone(removed_max);
        var initial = try graph.InitialGraph.init(allocator, @intCast(members.len), removed_count, degree);
        errdefer initial.deinit(allocator);
        var walk = try PageWalk.init(allocator, &self.opened);
        defer walk.deinit();
        var ids: [layout.adjacency.neighbors_max]u32 = undefined;
        for (0..self.opened.directory.page_count()) |page| {
            if (!self.is_needed(@intCast(page))) {
                walk.skip();
                continue;
            }
            const view = (try walk.next(diagnostic)).?;
            for (0..view.record_count) |record| {
                const vertex = view.first_vertex + @as(u32, @intCast(record));
                if (self.numbers[vertex] == elsewhere) continue;
                WarmStart.put(&initial, self.numbers, vertex, try walk.list(&view, @intCast(record), &ids, diagnostic));
            }
        }
        return initial;
    }

    fn number_gone(self: *Partly, removed_max: u64) u32 {
        var count: u32 = 0;
        for (0..self.opened.directory.page_count()) |page| {
            if (!self.is_needed(@intCast(page))) continue;
            const first = self.opened.directory.first_vertex(@intCast(page));
            const records = self.opened.directory.record_count(@intCast(page));
            for (self.warm_start.rows[first..][0..records], self.numbers[first..][0..records]) |row, *number| {
                if (row != WarmStart.removed or count == removed_max) continue;
                number.* = count | graph.InitialGraph.removed_mark;
                count += 1;
            }
        }
        return count;
    }

    fn is_needed(self: *const Partly, page: u32) bool {
        const first = self.opened.directory.first_vertex(@intCast(page));
        for (self.numbers[first..][0..self.opened.directory.record_count(page)]) |number| {
            if (number & graph.InitialGraph.removed_mark == 0) return true;
        }
        return false;
    }
};

/// The places of rows among members. Both ascend, as a rule; then it is one pass over both.
const Places = struct {
    members: []const u32,
    next: usize = 0,

    fn of(self: *Places, row: u32) u32 {
        const members = self.members;
        const is_behind_last = self.next == 0 or members[self.next - 1] < row;
        const is_at_next = self.next == members.len or members[self.next] >= row;
        if (!is_behind_last or !is_at_next) self.next = std.sort.lowerBound(u32, members, row, compare);
        if (self.next == members.len or members[self.next] != row) return elsewhere;
        self.next += 1;
        return @intCast(self.next - 1);
    }

    fn compare(wanted: u32, row: u32) std.math.Order {
        return std.math.order(wanted, row);
    }
};

test "new rows stand behind the first neighbor that was there, in the order of a former index" {
    const allocator = std.testing.allocator;
    var built = try graph.Graph.empty(allocator, 7, 3);
    defer built.deinit(allocator);
    // Rows 1, 3 and 5 are new; 5 knows only 3, and 6 has no list.
    for ([_][]const u32{ &.{ 2, 4 }, &.{ 3, 4, 0 }, &.{0}, &.{ 4, 0 }, &.{0}, &.{3}, &.{} }, 0..) |list, row| {
        built.degrees[row] = @intCast(list.len);
        @memcpy(built.row(@intCast(row))[0..list.len], list);
    }
    var rows = [_]u32{ 6, WarmStart.removed, 4, 0, 2 };
    const warm_start: WarmStart = .{ .path = &.{}, .rows = &rows, .removed_count = 1 };
    var diagnostic: Diagnostic = .{};
    const order = try warm_start.order(allocator, 7, .{ .graph = &built }, &diagnostic);
    defer base.free_untouched(allocator, order);
    try std.testing.expectEqualSlices(u32, &.{ 6, 4, 1, 3, 0, 2, 5 }, order);
}
