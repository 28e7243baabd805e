//! Searches that nobody waits for: a ticket is submitted, reaped once it has ended, and may be canceled meanwhile.
const filter_room = @import("filter");
const index = @import("index");
const search = @import("search");
const call = @import("call.zig");
const common = @import("common.zig");
const Delta = call.Delta;
const handle_file = @import("handle.zig");
const Index = handle_file.Index;
const report = common.report;
const ok = common.ok;

const Ticket = struct {
    job: search.Job,
    node: handle_file.Node,
    index: *Index,
    answers: search.Answers,
    delta: ?call.AskedOfDelta,

    /// A ticket with its own copy of queries and filters, for callers go on.
    fn create(number: u64, arguments: *const call.Arguments, out: *const call.SearchOut) common.Failure!*Ticket {
        const ticket = try common.allocator.create(Ticket);
        errdefer common.allocator.destroy(ticket);
        ticket.index = arguments.segments[0].index.?;
        ticket.answers = call.answers_of(out);
        const segments = try common.allocator.alloc(search.JobSegment, arguments.segments.len);
        errdefer common.allocator.free(segments);
        ticket.job = try arguments.job_of(segments, &ticket.answers, on_done);
        ticket.node = .{ .number = number, .canceled = &ticket.job.canceled };
        ticket.job.queries = try common.allocator.dupe(u8, ticket.job.queries);
        errdefer common.allocator.free(ticket.job.queries);
        var copied: usize = 0;
        errdefer for (segments[0..copied]) |segment| common.allocator.free(segment.filters);
        for (segments) |*segment| {
            segment.filters = try common.allocator.dupe(?*const filter_room.Filter, segment.filters);
            copied += 1;
        }
        ticket.delta = null;
        if (arguments.delta) |given| {
            ticket.delta = @as(call.AskedOfDelta, undefined);
            try ticket.delta.?.init(given, &ticket.job, ticket.index.workers.threads);
            ticket.job.delta = &ticket.delta.?.of_job;
        }
        return ticket;
    }

    fn destroy(self: *Ticket) void {
        if (self.delta) |*delta| delta.deinit();
        for (self.job.segments) |segment| common.allocator.free(segment.filters);
        common.allocator.free(self.job.segments);
        common.allocator.free(self.job.queries);
        common.allocator.destroy(self);
    }

    fn on_done(job: *search.Job) void {
        const self: *Ticket = @fieldParentPtr("job", job);
        call.write_statuses(&self.answers, job.count);
        // After this the ticket belongs to whoever reaps it.
        self.index.completed.push(&self.node);
    }
};

export fn velo_submit(
    handle: ?*Index,
    queries: ?*const anyopaque,
    dtype: i32,
    query_count: u64,
    filters: ?[*]const ?*filter_room.Filter,
    filter_count: u64,
    options: ?*const call.SearchOptions,
    out: ?*const call.SearchOut,
    ticket_number: u64,
) i32 {
    const one: call.Segment = .{ .index = handle, .filters = filters };
    return common.status_of_call(submit(
        &.{ .segments = (&one)[0..1], .queries = queries, .dtype = dtype, .query_count = query_count, .filter_count = filter_count, .options = options },
        out,
        ticket_number,
    ));
}

export fn velo_submit_segments(
    segments: ?[*]const call.Segment,
    segment_count: u32,
    delta: ?*const Delta,
    queries: ?*const anyopaque,
    dtype: i32,
    query_count: u64,
    filter_count: u64,
    options: ?*const call.SearchOptions,
    out: ?*const call.SearchOut,
    ticket_number: u64,
) i32 {
    const all = call.segments_of(segments, segment_count) catch |err| return common.status_of_call(err);
    return common.status_of_call(submit(
        &.{ .segments = all, .delta = delta, .queries = queries, .dtype = dtype, .query_count = query_count, .filter_count = filter_count, .options = options },
        out,
        ticket_number,
    ));
}

fn submit(arguments: *const call.Arguments, out: ?*const call.SearchOut, number: u64) common.Failure!void {
    const self = try common.need("index", arguments.segments[0].index);
    const theirs = try common.need("out", out);
    try call.enter(arguments.segments);
    defer call.leave(arguments.segments);
    if (arguments.query_count == 0) return report(.invalid_argument, .{ .argument = "queries" }, "a ticket needs at least one query", .{});
    const ticket = try Ticket.create(number, arguments, &try common.read(call.SearchOut, "out", theirs));
    errdefer ticket.destroy();
    if (!self.completed.reserve(&ticket.node)) return report(.busy, .{}, "{d} searches wait already", .{handle_file.waiting_max});
    errdefer self.completed.forget(&ticket.node);
    try self.submit(&ticket.job);
}

pub const Completion = extern struct { ticket: u64, status: i32, reserved: u32 = 0 };

export fn velo_reap(handle: ?*Index, completions_out: ?[*]Completion, capacity: u32, count_out: ?*u32) i32 {
    const self = handle orelse return common.null_argument("index");
    const out = completions_out orelse return common.null_argument("completions_out");
    const count = count_out orelse return common.null_argument("count_out");
    if (self.process != common.process()) return common.forked();
    count.* = 0;
    while (count.* < capacity) {
        const node = self.completed.pop() orelse break;
        const ticket: *Ticket = @fieldParentPtr("node", node);
        out[count.*] = .{ .ticket = node.number, .status = call.status_of_job(&ticket.job) };
        count.* += 1;
        ticket.destroy();
    }
    return ok;
}

export fn velo_cancel(handle: ?*Index, ticket: u64) i32 {
    const self = handle orelse return common.null_argument("index");
    self.enter() catch |err| return common.status_of_call(err);
    defer self.leave();
    self.completed.cancel(ticket);
    return ok;
}

export fn velo_event_fd(handle: ?*Index, fd_out: ?*i32) i32 {
    const self = handle orelse return common.null_argument("index");
    const out = fd_out orelse return common.null_argument("fd_out");
    if (self.process != common.process()) return common.forked();
    out.* = self.completed.event() catch |err| return switch (err) {
        error.SystemResources => common.out_of_memory(),
        else => common.fail(.io, .{}, "the system gave no eventfd: {s}", .{index.diagnostic.reason(err)}),
    };
    return ok;
}
