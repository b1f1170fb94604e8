// Package distil lets a student learn what a teacher predicts, rather than the tokens of a text alone: knowledge
// distillation (Hinton, Vinyals and Dean, "Distilling the Knowledge in a Neural Network", 2015) with the forward
// divergence.
//
// With the logits z of a row, temperature τ, p = softmax(z_teacher/τ) and q = softmax(z_student/τ), its loss is
//
//	τ²·KL(p ‖ q) + α·(-log softmax(z_student)[label])
//
// The factor τ² keeps gradients of the same size at any temperature. Of a large vocabulary the K tokens that the
// teacher finds likeliest count by themselves and all others as one event, the rest: with R its probability,
//
//	KL = Σ_{k∈K} p_k·log(p_k/q_k) + R_p·log(R_p/R_q)
//
// which is never more than the whole divergence (events were joined), and 0 only where the student has the teacher's
// probabilities of the K tokens. Its gradient by the student's z/τ is q_k - p_k for the K tokens and q_j·(1 - R_p/R_q)
// for the others.
//
// The teacher is a model that runs beside the student ([Resident]), or a file of what it has said about the data
// ([Cache]).
package distil
